//! Rewrites a parsed filter where jq(1) and the interpreter differ: updates of missing values,
//! divisions without a remainder, and values within strings.

use jaq_core::load::lex::StrPart;
use jaq_core::load::parse::{BinaryOp, Def, Pattern, Term};
use jaq_core::ops::Math;
use jaq_core::path::{Part, Path};

/// Variable that holds the right side of an update.
const VALUE: &str = "$the_value_of_an_update";

type StrTerm<'s> = Term<&'s str>;

/// Rewrites a filter and all filters within it.
pub(crate) fn filter(term: StrTerm<'_>) -> StrTerm<'_> {
    match term {
        Term::BinOp(left, operator, right) => operation(filter(*left), operator, filter(*right)),
        Term::Str(format, parts) => text(format, parts),
        Term::Arr(inside) => Term::Arr(inside.map(boxed)),
        Term::Obj(entries) => Term::Obj(
            entries.into_iter().map(|(key, value)| (filter(key), value.map(filter))).collect(),
        ),
        Term::Neg(inside) => Term::Neg(boxed(inside)),
        Term::Label(name, inside) => Term::Label(name, boxed(inside)),
        Term::Fold(kind, over, pattern, steps) => Term::Fold(
            kind,
            boxed(over),
            self::pattern(pattern),
            steps.into_iter().map(filter).collect(),
        ),
        Term::TryCatch(inside, other) => Term::TryCatch(boxed(inside), other.map(boxed)),
        Term::IfThenElse(branches, other) => {
            let branches = branches.into_iter().map(|(test, then)| (filter(test), filter(then)));
            Term::IfThenElse(branches.collect(), other.map(boxed))
        }
        Term::Def(defs, inside) => Term::Def(defs.into_iter().map(def).collect(), boxed(inside)),
        Term::Call(name, arguments) => {
            Term::Call(name, arguments.into_iter().map(filter).collect())
        }
        Term::Path(from, Path(parts)) => {
            let parts = parts.into_iter().map(|(part, opt)| (self::part(part), opt));
            Term::Path(boxed(from), Path(parts.collect()))
        }
        plain @ (Term::Id | Term::Recurse | Term::Num(_) | Term::Break(_) | Term::Var(_)) => plain,
    }
}

#[expect(clippy::boxed_local, reason = "the tree is made of boxes")]
fn boxed(term: Box<StrTerm<'_>>) -> Box<StrTerm<'_>> {
    Box::new(filter(*term))
}

fn def<'s>(Def { name, args, body }: Def<&'s str, StrTerm<'s>>) -> Def<&'s str, StrTerm<'s>> {
    Def { name, args, body: filter(body) }
}

fn part<'s>(part: Part<StrTerm<'s>>) -> Part<StrTerm<'s>> {
    match part {
        Part::Index(index) => Part::Index(filter(index)),
        Part::Range(from, to) => Part::Range(from.map(filter), to.map(filter)),
    }
}

fn pattern(pattern: Pattern<&str>) -> Pattern<&str> {
    match pattern {
        Pattern::Var(name) => Pattern::Var(name),
        Pattern::Arr(items) => Pattern::Arr(items.into_iter().map(self::pattern).collect()),
        Pattern::Obj(entries) => {
            let entries =
                entries.into_iter().map(|(key, value)| (filter(key), self::pattern(value)));
            Pattern::Obj(entries.collect())
        }
    }
}

/// Gives a string that includes filters the format `@text` of `compat.jq`, unless it has a format.
fn text<'s>(format: Option<&'s str>, parts: Vec<StrPart<&'s str, StrTerm<'s>>>) -> StrTerm<'s> {
    let has_filters = parts.iter().any(|part| matches!(part, StrPart::Term(_)));
    let parts = parts.into_iter().map(|part| match part {
        StrPart::Term(term) => StrPart::Term(filter(term)),
        plain @ (StrPart::Str(_) | StrPart::Char(_)) => plain,
    });
    let format = if has_filters { format.or(Some("@text")) } else { format };
    Term::Str(format, parts.collect())
}

/// Builds an operation from two filters that are already rewritten.
fn operation<'s>(
    left: StrTerm<'s>,
    operator: BinaryOp<&'s str>,
    right: StrTerm<'s>,
) -> StrTerm<'s> {
    let value = || Box::new(Term::Var(VALUE));
    let update = |left, right, by| {
        let by = Term::Call("update_paths", vec![left, by]);
        Term::BinOp(Box::new(right), BinaryOp::Pipe(Some(Pattern::Var(VALUE))), Box::new(by))
    };
    match operator {
        BinaryOp::Math(Math::Div) => Term::Call("divide", vec![left, right]),
        BinaryOp::Assign => Term::Call("assign_paths", vec![left, right]),
        BinaryOp::Update => Term::Call("update_paths", vec![left, right]),
        BinaryOp::UpdateMath(Math::Div) => {
            update(left, right, Term::Call("divide", vec![Term::Id, Term::Var(VALUE)]))
        }
        BinaryOp::UpdateMath(math) => {
            update(left, right, Term::BinOp(Box::new(Term::Id), BinaryOp::Math(math), value()))
        }
        BinaryOp::UpdateAlt => {
            update(left, right, Term::BinOp(Box::new(Term::Id), BinaryOp::Alt, value()))
        }
        BinaryOp::Pipe(by) => {
            let by = BinaryOp::Pipe(by.map(pattern));
            Term::BinOp(Box::new(left), by, Box::new(right))
        }
        plain @ (BinaryOp::Comma
        | BinaryOp::Alt
        | BinaryOp::Or
        | BinaryOp::And
        | BinaryOp::Math(_)
        | BinaryOp::Cmp(_)) => Term::BinOp(Box::new(left), plain, Box::new(right)),
    }
}
