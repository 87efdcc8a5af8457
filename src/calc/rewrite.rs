//! Rewrites an expression of `calculate` so that bc evaluates it with its mathematical meaning.
//!
//! bc's `%` depends on the working scale (`7%3` is 0.00…01 at scale 20), its
//! `^` warns about and truncates an exponent such as `4/2`, and its `l(0)` is a large
//! number. Operands of the first two are passed to functions of the library
//! instead; all other text remains unchanged.

use std::borrow::Cow;

use super::library::{self, Gives};
use super::moderate;
use super::tokens::{Expression, KEYWORDS, Kind, Token};

/// Functions of bc without side effects whose value does not depend on `scale`.
const PURE_FUNCTIONS: &[&str] = &["s", "c", "a", "l", "e", "j", "sqrt"];
/// Kind of an expression, which decides how it may be evaluated repeatedly.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shape {
    /// Only integers: every working scale returns the same exact value.
    Integer,
    /// No state: evaluations in one process do not affect each other.
    Pure,
    /// Assigns, defines or jumps: each evaluation needs a new process.
    Stateful,
    /// Reads the scale or prints in another base: only one evaluation at the requested scale is
    /// meaningful.
    Raw,
}

/// How products, quotients, powers and comparisons are computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Arithmetic {
    /// Fixed point as in bc, with as many decimals as the scale.
    #[default]
    Fixed,
    /// Floating point, with as many significant digits as the scale.
    Floating,
    /// By bc's own operators: they give the same as those of [`Self::Floating`].
    Own,
}

impl Expression<'_> {
    /// Returns true if the expression has `%=`, which cannot be rewritten.
    pub(super) fn has_modulo_assignment(&self) -> bool {
        self.has(&["%="])
    }

    pub(super) fn shape(&self) -> Shape {
        if self.is_raw() {
            return Shape::Raw;
        }
        let assigns =
            self.has(&["=", "+=", "-=", "*=", "/=", "^=", "++", "--", "{", "}", "[", "]"]);
        let only_functions = self
            .names()
            .all(|name| PURE_FUNCTIONS.contains(&name) || library::gives(name).is_some());
        // A single `.` is the last value in bc.
        let last =
            self.tokens().iter().any(|token| token.kind == Kind::Number && token.text == ".");
        if assigns || last || !only_functions {
            return Shape::Stateful;
        }
        let integers = self.tokens().iter().all(|token| !token.text.contains('.'));
        // A difference in an exponent may be negative.
        let negative_power = self.has(&["^"]) && self.has(&["-"]);
        let whole = self.names().all(|name| library::gives(name) == Some(Gives::Whole));
        if integers && whole && !self.has(&["/"]) && !negative_power {
            return Shape::Integer;
        }
        Shape::Pure
    }

    fn is_raw(&self) -> bool {
        let mut after = self.tokens().iter().skip(1).map(Some).chain([None]);
        self.tokens().iter().any(|token| {
            let assigned = after.next().flatten().is_some_and(|next| next.text == "=");
            matches!(token.text, "length" | "obase")
                || (token.text == "scale" && !assigned)
                || (token.kind == Kind::Name && library::gives(token.text) == Some(Gives::Text))
        })
    }

    /// Returns true if the expression sets `scale` above `precision`, or to more than a plain
    /// number.
    pub(super) fn sets_scale_above(&self, precision: u32) -> bool {
        let sets = ["=", "+=", "*=", "^=", "++"];
        let within = |value: Option<&Token<'_>>| {
            value.and_then(|value| value.text.parse().ok()).is_some_and(|it: u32| it <= precision)
        };
        let is_scale = |index: usize| self.tokens().get(index).is_some_and(|it| it.text == "scale");
        // An expression that prints `scale` or in another base is evaluated unchanged.
        self.shape() != Shape::Raw
            && self.tokens().iter().enumerate().any(|(index, token)| {
                let target = index.checked_sub(1).is_some_and(is_scale);
                let counted = token.text == "++" && is_scale(index + 1);
                let assigned = target && sets.contains(&token.text);
                let alone = self.tokens().get(index + 2).is_none_or(|it| it.kind == Kind::Break);
                let known = token.text == "=" && alone && within(self.tokens().get(index + 1));
                counted || (assigned && !known)
            })
    }

    /// Returns the expression as bc text that calls functions of the library.
    pub(super) fn rewritten(&self, arithmetic: Arithmetic) -> String {
        let defined = library::defined_in(self.tokens());
        let mut writer = Writer { arithmetic, ..Writer::default() };
        for (index, token) in self.tokens().iter().enumerate() {
            let before = index.checked_sub(1).and_then(|index| self.tokens().get(index));
            let called = self.tokens().get(index + 1).is_some_and(|next| next.text == "(");
            if called && token.kind == Kind::Name && !defined.contains(&token.text) {
                let name = in_library(token.text, arithmetic);
                writer.name(name, token, before);
            } else {
                writer.write(token, before);
            }
        }
        writer.finish()
    }

    /// Returns the arithmetic for the expression.
    pub(super) fn arithmetic(&self) -> Arithmetic {
        let sets_scale = self.names().any(|name| name == "scale");
        match self.shape() {
            Shape::Raw | Shape::Integer => Arithmetic::Fixed,
            Shape::Stateful if sets_scale => Arithmetic::Fixed,
            Shape::Pure if moderate::is_moderate(self) => Arithmetic::Own,
            Shape::Stateful | Shape::Pure => Arithmetic::Floating,
        }
    }

    /// Returns the maximum number of decimals of the numbers in the expression.
    pub(super) fn decimals(&self) -> usize {
        let numbers = self.tokens().iter().filter(|token| token.kind == Kind::Number);
        let decimals = numbers.filter_map(|token| token.text.split_once('.'));
        decimals.map(|(_, decimals)| decimals.len()).max().unwrap_or(0)
    }
}

/// Returns the function for a call: that of the library if bc's loses digits of small values.
fn in_library(name: &str, arithmetic: Arithmetic) -> Cow<'_, str> {
    match (name, arithmetic) {
        ("l", Arithmetic::Fixed) => "cofferdam_ln".into(),
        (_, Arithmetic::Fixed | Arithmetic::Own) => name.into(),
        ("sqrt", _) => "cofferdam_root_of".into(),
        ("e", _) => "cofferdam_exp".into(),
        ("l", _) => "cofferdam_relative_ln".into(),
        ("s", _) => "cofferdam_relative_sin".into(),
        ("c", _) => "cofferdam_relative_cos".into(),
        ("a", _) => "cofferdam_relative_atan".into(),
        _ => library::relative(name).map_or(Cow::Borrowed(name), Cow::Owned),
    }
}

/// Writes tokens, and turns operators into calls when their operands are complete.
#[derive(Default)]
struct Writer<'text> {
    arithmetic: Arithmetic,
    out: Vec<Cow<'text, str>>,
    level: Level,
    /// The enclosing levels, one for each open bracket.
    around: Vec<Level>,
}

/// A bracket level: where its current operands begin, and the calls to close.
#[derive(Default)]
struct Level {
    comparison: usize,
    product: usize,
    /// Beginning of the operand of a power, including its sign.
    factor: usize,
    /// Calls that end with the current power.
    powers: usize,
    /// True if a call ends with the current factor.
    multiplies: bool,
    /// Calls that end with the current sum: those of `*=` and similar operators.
    assignments: usize,
    /// The comparison with 0 that ends the current comparison.
    compares: Option<&'static str>,
}

impl<'text> Writer<'text> {
    /// Writes the name of a function instead of `token`.
    fn name(&mut self, name: Cow<'text, str>, token: &Token<'text>, before: Option<&Token<'text>>) {
        self.write(token, before);
        if let Some(last) = self.out.last_mut() {
            *last = name;
        }
    }

    fn write(&mut self, token: &Token<'text>, before: Option<&Token<'text>>) {
        let operand_before = before.is_some_and(ends_operand);
        let floating = self.arithmetic == Arithmetic::Floating;
        match token.text {
            "(" | "[" | "{" => {
                // A bracket after an operand continues it: a call or an element.
                // After a keyword or `)` it begins a new expression, as in `if (a) (b)`.
                if !before.is_some_and(|token| token.kind == Kind::Name && !is_keyword(token)) {
                    self.begin_statement_if(operand_before);
                }
                self.push(token.text);
                let inner = Level::at(self.out.len());
                self.around.push(std::mem::replace(&mut self.level, inner));
            }
            ")" | "]" | "}" => {
                self.end_comparison();
                self.level = self.around.pop().unwrap_or_default();
                self.push(token.text);
                self.begin_statement_if(token.text == "}");
            }
            text if floating && self.floating(text) => {}
            "%" => self.multiply("cofferdam_mod("),
            "*" | "/" => {
                self.end_product();
                self.push(token.text);
                self.level.factor = self.out.len();
            }
            "^" if self.arithmetic == Arithmetic::Own => self.push(token.text),
            "^" => {
                self.out.extend(["^".into(), "cofferdam_int(".into()]);
                self.level.powers += 1;
            }
            "++" | "--" => {
                // bc cannot increment a value in brackets: this begins a statement, as in
                // `if (a) ++b`.
                self.begin_statement_if(before.is_some_and(|token| token.text == ")"));
                self.push(token.text);
            }
            // A sign belongs to the factor it precedes.
            "-" if !operand_before => self.push(token.text),
            "+" | "-" | "=" | "+=" | "-=" | "*=" | "/=" | "^=" => {
                self.end_product();
                self.push(token.text);
                self.begin_product();
            }
            text if token.kind == Kind::Operator || token.kind == Kind::Break => {
                self.end_comparison();
                self.push(text);
                self.begin_statement_if(true);
            }
            text => {
                let counted = before.is_some_and(|token| matches!(token.text, "++" | "--"));
                self.begin_statement_if(operand_before && !counted);
                self.push(text);
                self.begin_statement_if(is_keyword(token));
            }
        }
    }

    /// Writes an operator as a call. Returns false for an operator that remains unchanged.
    fn floating(&mut self, operator: &'text str) -> bool {
        match operator {
            "*" => self.multiply("cofferdam_times("),
            "/" => self.multiply("cofferdam_over("),
            "^" => {
                self.out.insert(self.level.factor, "cofferdam_pow(".into());
                self.push(",");
                self.level.powers += 1;
                self.level.factor = self.out.len();
            }
            "*=" => self.assign(operator, "cofferdam_times("),
            "/=" => self.assign(operator, "cofferdam_over("),
            "^=" => self.assign(operator, "cofferdam_pow("),
            "<" | ">" | "<=" | ">=" | "==" | "!=" => self.compare(operator),
            _ => return false,
        }
        true
    }

    fn push(&mut self, text: &'text str) {
        self.out.push(text.into());
    }

    /// Turns the current product into the first argument of a call.
    fn multiply(&mut self, call: &'static str) {
        self.end_product();
        self.out.insert(self.level.product, call.into());
        self.push(",");
        self.level.multiplies = true;
        self.level.factor = self.out.len();
    }

    /// Writes `x=call(x,` for `x*=`, unless evaluating `x` has a side effect.
    fn assign(&mut self, operator: &'text str, call: &'static str) {
        let assigned = self.out.get(self.level.factor..).unwrap_or_default().to_vec();
        let acts =
            |part: &Cow<'_, str>| part.contains(['(', '=']) || *part == "++" || *part == "--";
        if assigned.iter().any(acts) {
            self.push(operator);
        } else {
            self.out.extend(["=".into(), call.into()]);
            self.out.extend(assigned);
            self.push(",");
            self.level.assignments += 1;
        }
        self.begin_product();
    }

    /// Writes `order(a,b)<0` for `a<b`.
    fn compare(&mut self, operator: &str) {
        self.end_comparison();
        self.out.insert(self.level.comparison, "cofferdam_order(".into());
        self.push(",");
        self.level.compares = Some(match operator {
            "<" => ")<0",
            ">" => ")>0",
            "<=" => ")<=0",
            ">=" => ")>=0",
            "==" => ")==0",
            _ => ")!=0",
        });
        self.begin_product();
    }

    fn close(&mut self, calls: usize) {
        self.out.extend(std::iter::repeat_n(Cow::Borrowed(")"), calls));
    }

    fn end_product(&mut self) {
        let powers = std::mem::take(&mut self.level.powers);
        let product = std::mem::take(&mut self.level.multiplies);
        self.close(powers + usize::from(product));
    }

    fn end_comparison(&mut self) {
        self.end_product();
        let assignments = std::mem::take(&mut self.level.assignments);
        self.close(assignments);
        if let Some(compares) = self.level.compares.take() {
            self.push(compares);
        }
    }

    fn begin_product(&mut self) {
        (self.level.product, self.level.factor) = (self.out.len(), self.out.len());
    }

    /// Begins a new expression here if the condition is true.
    fn begin_statement_if(&mut self, begins: bool) {
        if begins {
            self.end_comparison();
            self.level = Level::at(self.out.len());
        }
    }

    fn finish(mut self) -> String {
        self.end_comparison();
        // Separate all tokens by blanks: otherwise `- -1` would become `--1`, and words would join.
        self.out.join(" ")
    }
}

impl Level {
    fn at(index: usize) -> Self {
        Self { comparison: index, product: index, factor: index, ..Self::default() }
    }
}

fn is_keyword(token: &Token<'_>) -> bool {
    KEYWORDS.contains(&token.text)
}

fn ends_operand(token: &Token<'_>) -> bool {
    match token.kind {
        Kind::Number => true,
        Kind::Name => !is_keyword(token),
        Kind::Operator => matches!(token.text, ")" | "]" | "++" | "--"),
        Kind::Break => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rewritten(text: &str) -> String {
        written(text, Arithmetic::Fixed)
    }

    fn written(text: &str, arithmetic: Arithmetic) -> String {
        let short = Expression::new(text).rewritten(arithmetic).replace("cofferdam_", "");
        short.replace(' ', "")
    }

    #[test]
    fn operators_that_lose_digits_are_calls_of_the_library() {
        let cases = [
            ("a*b/c", "over(times(a,b),c)"),
            ("-2^2", "pow(-2,2)"),
            ("2^-3^2*4", "times(pow(2,pow(-3,2)),4)"),
            ("1-a*-b^2+c", "1-times(a,pow(-b,2))+c"),
            ("x=y=a/b+c", "x=y=over(a,b)+c"),
            ("x*=a+b;c", "x=times(x,a+b);c"),
            ("v[i+1]/=y^=2", "v[i+1]=over(v[i+1],y=pow(y,2))"),
            ("v[i++]*=2", "v[i++]*=2"),
            ("x+=a*b", "x+=times(a,b)"),
            ("a*b<c/d", "order(times(a,b),over(c,d))<0"),
            ("a<b==c", "order(order(a,b)<0,c)==0"),
            ("!a/b>c&&d!=e", "!order(over(a,b),c)>0&&order(d,e)!=0"),
            ("x=a<b", "order(x=a,b)<0"),
            ("x*=a>=b", "order(x=times(x,a),b)>=0"),
            ("if(a<b)c*d", "if(order(a,b)<0)times(c,d)"),
            ("for(i=0;i<9;i++)x*=i", "for(i=0;order(i,9)<0;i++)x=times(x,i)"),
            ("f(a/b,c*d)", "f(over(a,b),times(c,d))"),
            ("s(x)*sqrt(y)", "times(relative_sin(x),root_of(y))"),
            ("e(l(2)/a(1))", "exp(over(relative_ln(2),relative_atan(1)))"),
            ("while(1){x/=2}y*z", "while(1){x=over(x,2)}times(y,z)"),
            ("definel(x){return(x)}", "definel(x){return(x)}"),
        ];
        for (text, expected) in cases {
            let spaced = text.replace("define", "define ");
            assert_eq!(written(&spaced, Arithmetic::Floating), expected, "{text}");
        }
    }

    #[test]
    fn operands_of_modulo_are_the_product_before_and_the_factor_after() {
        let cases = [
            ("7%3", "mod(7,3)"),
            ("1+7%3+2", "1+mod(7,3)+2"),
            ("2*7%3*5", "mod(2*7,3)*5"),
            ("9%5%3", "mod(mod(9,5),3)"),
            ("-7%3", "mod(-7,3)"),
            ("7%-3", "mod(7,-3)"),
            ("(1+7)%(2+3)", "mod((1+7),(2+3))"),
            ("s(7%3)%2", "mod(s(mod(7,3)),2)"),
            ("2^3%5", "mod(2^int(3),5)"),
            ("5%2^3", "mod(5,2^int(3))"),
            ("a[7%3]%2", "mod(a[mod(7,3)],2)"),
            ("a=7%3;b=a%2", "a=mod(7,3);b=mod(a,2)"),
            ("if(a)b%c", "if(a)mod(b,c)"),
            ("while(i++<3)i%2", "while(i++<3)mod(i,2)"),
            ("7%3==1", "mod(7,3)==1"),
            ("f(7%3,8%3)", "f(mod(7,3),mod(8,3))"),
            ("1\n7%3", "1\nmod(7,3)"),
            ("a++%2", "mod(a++,2)"),
            ("++a%2", "mod(++a,2)"),
            ("if(a)++b%2", "if(a)mod(++b,2)"),
            ("!a%2", "!mod(a,2)"),
            ("return -a%2", "returnmod(-a,2)"),
        ];
        for (text, expected) in cases {
            assert_eq!(rewritten(text), expected, "{text}");
        }
    }

    #[test]
    fn exponents_group_from_the_right() {
        assert_eq!(rewritten("2^3^2*4"), "2^int(3^int(2))*4");
        assert_eq!(rewritten("2^-3+1"), "2^int(-3)+1");
        assert_eq!(rewritten("4^(4/2)"), "4^int((4/2))");
        assert_eq!(rewritten("-2^2"), "-2^int(2)");
    }

    #[test]
    fn the_logarithm_is_checked_unless_it_is_redefined() {
        assert_eq!(rewritten("l(2)+sqrt(l(3))"), "ln(2)+sqrt(ln(3))");
        assert_eq!(rewritten("define l(x){return(x)}\nl(2)"), "definel(x){return(x)}\nl(2)");
    }

    #[test]
    fn an_expression_is_evaluated_as_its_shape_allows() {
        let cases = [
            ("2+2", Shape::Integer),
            ("2^300", Shape::Integer),
            ("3>2", Shape::Integer),
            ("7%3", Shape::Integer),
            ("2^(1-3)", Shape::Pure),
            ("1/3", Shape::Pure),
            ("1.5+1", Shape::Pure),
            ("sqrt(2)", Shape::Pure),
            ("e(1) == e(1)", Shape::Pure),
            ("a=5", Shape::Stateful),
            ("x+1", Shape::Stateful),
            (".", Shape::Stateful),
            ("last+1", Shape::Stateful),
            ("i++", Shape::Stateful),
            ("scale=5; 1/3", Shape::Stateful),
            ("scale", Shape::Raw),
            ("length(1/3)", Shape::Raw),
            ("obase=16; 255", Shape::Raw),
        ];
        for (text, shape) in cases {
            assert_eq!(Expression::new(text).shape(), shape, "{text}");
        }
    }
}
