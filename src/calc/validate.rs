//! Validates expressions and scripts, to report errors early and clearly.
//!
//! This is not a security boundary: bc runs in a cell that cannot execute, fork or open a file. A
//! valid text may still run for ever; the limits end it.

use super::CalcError;
use super::tokens::Expression;

/// Maximum length of an expression or a script in characters.
pub const EXPRESSION_CHARACTERS: usize = 10_000;

const SYMBOLS: &str = "+-*/^().,;=<>!&|%{}[]_";
/// Patterns with their effect in other programs; bc itself does not have them.
const DANGEROUS: &[(&str, &str)] = &[
    ("system(", "starts a program"),
    ("exec(", "starts a program"),
    ("`", "starts a program"),
    ("$(", "starts a program"),
    (">/", "writes a file"),
    ("</", "reads a file"),
];

/// Checks the expression of `calculate`.
///
/// # Errors
/// [`CalcError::Invalid`], which says what is wrong and where.
pub(super) fn expression(text: &str) -> Result<(), CalcError> {
    check(text, Language::Expression)
}

/// Checks the script of `calculate_advanced`, which may also have strings, `#` comments and free
/// text in comments.
///
/// # Errors
/// [`CalcError::Invalid`], which says what is wrong and where.
pub(super) fn script(text: &str) -> Result<(), CalcError> {
    check(text, Language::Script)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Language {
    Expression,
    Script,
}

fn invalid(reason: impl Into<String>) -> CalcError {
    CalcError::Invalid(reason.into())
}

fn check(text: &str, language: Language) -> Result<(), CalcError> {
    if text.trim().is_empty() {
        return Err(invalid("it is empty"));
    }
    let length = text.chars().count();
    if length > EXPRESSION_CHARACTERS {
        return Err(invalid(format!(
            "it has {length} characters; at most {EXPRESSION_CHARACTERS} are taken"
        )));
    }
    let code = blank_comments(text, language)?;
    check_patterns(&code)?;
    for (place, character) in code.chars().enumerate() {
        let allowed = character.is_ascii_alphanumeric()
            || matches!(character, ' ' | '\t' | '\n' | '\r')
            || SYMBOLS.contains(character);
        if !allowed {
            let shown = printable(character);
            return Err(invalid(format!(
                "character `{shown}` at position {} is not allowed",
                place + 1
            )));
        }
    }
    check_brackets(&code)
}

/// Returns the text with comments and strings blanked, so that their content is not checked as
/// code.
fn blank_comments(text: &str, language: Language) -> Result<String, CalcError> {
    let mut code = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let script = language == Language::Script;
        let length = if rest.starts_with("/*") {
            let body = rest.get(2..).unwrap_or_default();
            4 + body.find("*/").ok_or_else(|| invalid("a comment `/*` is not ended by `*/`"))?
        } else if script && first == '"' {
            let body = rest.get(1..).unwrap_or_default();
            2 + body.find('"').ok_or_else(|| invalid("a string is not ended by `\"`"))?
        } else if script && first == '#' {
            rest.find('\n').unwrap_or(rest.len())
        } else {
            code.push(first);
            rest = rest.get(first.len_utf8()..).unwrap_or_default();
            continue;
        };
        let blanked = rest.get(..length).unwrap_or(rest);
        if let Some(control) = blanked.chars().find(|c| c.is_control() && !"\t\r\n".contains(*c)) {
            return Err(invalid(format!("character `{}` is not allowed", printable(control))));
        }
        code.extend(blanked.chars().map(|c| if c == '\n' { c } else { ' ' }));
        rest = rest.get(length..).unwrap_or_default();
    }
    Ok(code)
}

fn printable(character: char) -> String {
    if character.is_control() {
        return character.escape_debug().collect();
    }
    character.into()
}

fn check_patterns(code: &str) -> Result<(), CalcError> {
    let packed: String = code.chars().filter(|c| !c.is_whitespace()).collect();
    for (pattern, does) in DANGEROUS {
        if packed.contains(pattern) {
            return Err(invalid(format!("dangerous pattern `{pattern}` ({does}) is not allowed")));
        }
    }
    let expression = Expression::new(code);
    let tokens = expression.tokens();
    let reads = tokens
        .iter()
        .zip(tokens.iter().skip(1))
        .any(|(name, next)| name.text == "read" && next.text == "(");
    if reads {
        return Err(invalid("read() is not allowed: a calculation has no input to read"));
    }
    Ok(())
}

fn check_brackets(code: &str) -> Result<(), CalcError> {
    let mut open = Vec::new();
    for character in code.chars() {
        let expected = match character {
            '(' | '[' | '{' => {
                open.push(character);
                continue;
            }
            ')' => '(',
            ']' => '[',
            '}' => '{',
            _ => continue,
        };
        if open.pop() != Some(expected) {
            return Err(invalid(format!("unbalanced brackets: `{character}` closes nothing")));
        }
    }
    match open.pop() {
        Some(bracket) => Err(invalid(format!("unbalanced brackets: `{bracket}` is not closed"))),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn verdict(check: fn(&str) -> Result<(), CalcError>, text: &str) -> String {
        check(text).map_or_else(|error| error.to_string(), |()| "valid".to_owned())
    }

    #[test]
    fn arithmetic_comparison_and_control_flow_are_taken() {
        let valid = [
            "2+2",
            "a>b",
            "a > b",
            "3>=2 && 1<2 || !0",
            "a=5; b=10; a+b",
            "sqrt(2)",
            "my_var=3",
            "if (a) { b=1 }",
            "for (i=0; i<3; i++) i",
            "x[1]=2",
            "7 % 3",
            "/* note */ 1",
            "2\n+\t3\r\n",
            "thread(1)",
            "a<b/c",
        ];
        for text in valid {
            assert_eq!(verdict(expression, text), "valid", "{text}");
        }
    }

    #[test]
    fn the_mistake_is_named() {
        let cases = [
            ("", "Invalid expression: it is empty"),
            (" \n", "Invalid expression: it is empty"),
            ("2+é", "Invalid expression: character `é` at position 3 is not allowed"),
            ("2\u{0}", "Invalid expression: character `\\0` at position 2 is not allowed"),
            (
                "system('ls')",
                "Invalid expression: dangerous pattern `system(` (starts a program) is not allowed",
            ),
            (
                "exec (1)",
                "Invalid expression: dangerous pattern `exec(` (starts a program) is not allowed",
            ),
            (
                "$(ls)",
                "Invalid expression: dangerous pattern `$(` (starts a program) is not allowed",
            ),
            ("`ls`", "Invalid expression: dangerous pattern ``` (starts a program) is not allowed"),
            (
                "1 > /etc/x",
                "Invalid expression: dangerous pattern `>/` (writes a file) is not allowed",
            ),
            (
                "1 < /etc/x",
                "Invalid expression: dangerous pattern `</` (reads a file) is not allowed",
            ),
            (
                "read()",
                "Invalid expression: read() is not allowed: a calculation has no input to read",
            ),
            (
                "a=read ()",
                "Invalid expression: read() is not allowed: a calculation has no input to read",
            ),
            (
                "print read()",
                "Invalid expression: read() is not allowed: a calculation has no input to read",
            ),
            (
                "define f(x){return read ( )+x}",
                "Invalid expression: read() is not allowed: a calculation has no input to read",
            ),
            ("(1", "Invalid expression: unbalanced brackets: `(` is not closed"),
            ("1)", "Invalid expression: unbalanced brackets: `)` closes nothing"),
            ("(1]", "Invalid expression: unbalanced brackets: `]` closes nothing"),
            ("1 /* open", "Invalid expression: a comment `/*` is not ended by `*/`"),
            ("\"x\"", "Invalid expression: character `\"` at position 1 is not allowed"),
        ];
        for (text, message) in cases {
            assert_eq!(verdict(expression, text), message, "{text}");
        }
    }

    #[test]
    fn the_length_is_bounded_at_10000_characters() {
        let longest = "1".repeat(10_000);
        assert_eq!(verdict(expression, &longest), "valid");
        assert_eq!(
            verdict(script, &format!("{longest}1")),
            "Invalid expression: it has 10001 characters; at most 10000 are taken"
        );
    }

    #[test]
    fn scripts_may_have_strings_and_comments() {
        let text = "# it's system(1) in a comment (\nprint \"> /x (\\n\" /* `é` */\n1";
        assert_eq!(verdict(script, text), "valid");
        assert_eq!(
            verdict(script, "print \"open"),
            "Invalid expression: a string is not ended by `\"`"
        );
        assert_eq!(
            verdict(script, "# \u{1b}[2J"),
            "Invalid expression: character `\\u{1b}` is not allowed"
        );
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic(text in "\\PC{0,80}|[()\\[\\]{}/*\"#\n a-c<>`$é]{0,60}") {
            // A valid expression is also a valid script.
            prop_assert!(expression(&text).is_err() || script(&text).is_ok());
        }
    }
}
