//! Reads the types of a schema from their sources: the names, comments and types of the fields, as serde takes them.

use std::path::Path;

use syn::{Attribute, Expr, Field, GenericArgument, Item, Lit, Meta, PathArguments, Type};

/// The sources of one schema. A type is looked for in the file that names it, then in the others.
pub struct Sources {
    files: Vec<(String, Vec<Item>)>,
}

/// A table of a file: its comment and its keys, in the order of the fields.
pub struct Table {
    pub text: String,
    pub keys: Vec<Key>,
}

/// A key of a table.
pub struct Key {
    pub name: String,
    pub text: String,
    /// Words, or code between backticks; `None` for tables, and for a key that must be there.
    pub default: Option<String>,
    /// A value in TOML; `None` for tables.
    pub example: Option<String>,
    /// True if the file is refused without it.
    pub is_required: bool,
    pub value: Form,
}

/// Form of a value.
pub enum Form {
    /// A value that these words name.
    Plain(&'static str),
    /// One of these words, each with its comment.
    Choice(Vec<(String, String)>),
    List(Box<Form>),
    /// A table whose keys are names of the operator's choice.
    Map(Box<Form>),
    Table(Table),
    /// A list of tables.
    Tables(Table),
}

impl Sources {
    /// Reads these files, whose paths begin below `src`. The first one has the type `Written` of the whole file.
    pub fn new(paths: &[&str]) -> Self {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
        let read = |path: &&str| {
            let text = std::fs::read_to_string(root.join(path)).expect("a source");
            let file = syn::parse_file(&text).expect("it compiles");
            let stem = Path::new(path).file_stem().and_then(|stem| stem.to_str());
            (stem.unwrap_or_default().to_owned(), file.items)
        };
        Self { files: paths.iter().map(read).collect() }
    }

    /// Returns the table of the whole file.
    pub fn root(&self) -> Table {
        let Form::Table(table) = self.named(0, "Written") else {
            panic!("`Written` is no struct");
        };
        table
    }

    fn items(&self, file: usize) -> &[Item] {
        self.files.get(file).map_or(&[], |(_, items)| items)
    }

    /// Returns the form of the type `name`, as the file sees it.
    fn named(&self, file: usize, name: &str) -> Form {
        let others = (0..self.files.len()).filter(|other| *other != file);
        let mut all = [file].into_iter().chain(others);
        let found = all.find_map(|file| {
            self.items(file).iter().find_map(|item| self.defined(file, item, name))
        });
        found.unwrap_or_else(|| panic!("no source has the type `{name}`"))
    }

    /// Returns the form that an item defines, if `name` is its name.
    fn defined(&self, file: usize, item: &Item, name: &str) -> Option<Form> {
        if let Item::Struct(item) = item
            && item.ident == name
        {
            assert!(serde(&item.attrs, "deny_unknown_fields").is_some(), "`{name}` takes any key");
            let keys = item.fields.iter().map(|field| self.key(file, field)).collect();
            return Some(Form::Table(Table { text: comment(&item.attrs), keys }));
        }
        if let Item::Enum(item) = item
            && item.ident == name
        {
            let case = serde(&item.attrs, "rename_all");
            let spelled: fn(&str) -> String = match case.as_deref() {
                Some("lowercase") => str::to_lowercase,
                Some("kebab-case") => kebab,
                _ => panic!("`{name}` is spelled as in Rust"),
            };
            let word = |variant: &syn::Variant| {
                (spelled(&variant.ident.to_string()), comment(&variant.attrs))
            };
            return Some(Form::Choice(item.variants.iter().map(word).collect()));
        }
        None
    }

    fn key(&self, file: usize, field: &Field) -> Key {
        let ident = field.ident.as_ref().map(ToString::to_string).unwrap_or_default();
        let (text, default, example) = parts(&comment(&field.attrs));
        let can_be_absent = single(&field.ty).is_some_and(|(name, _)| name == "Option")
            || serde(&field.attrs, "default").is_some();
        Key {
            name: serde(&field.attrs, "rename").unwrap_or(ident),
            text,
            default,
            example,
            is_required: !can_be_absent,
            value: self.form(file, &field.ty),
        }
    }

    fn form(&self, file: usize, of: &Type) -> Form {
        if let Type::Tuple(_) = of {
            return Form::Plain("list of two numbers");
        }
        let (name, arguments) = single(of).expect("a path");
        let inner = || self.form(file, arguments.last().expect("an argument"));
        match name.as_str() {
            "Option" | "Spanned" => inner(),
            "Vec" | "BTreeSet" => match inner() {
                Form::Table(table) => Form::Tables(table),
                of @ (Form::Plain(_)
                | Form::Choice(_)
                | Form::List(_)
                | Form::Map(_)
                | Form::Tables(_)) => Form::List(Box::new(of)),
            },
            "BTreeMap" => Form::Map(Box::new(inner())),
            "bool" => Form::Plain("`true` or `false`"),
            "u8" | "u32" | "u64" | "usize" | "i64" => Form::Plain("whole number"),
            "String" | "ToolchainChoice" | "CacheSize" | "GuardedName" => Form::Plain("text"),
            "WrittenPorts" => Form::Plain("port, or text"),
            "PathBuf" => Form::Plain("path"),
            "Time" => Form::Plain("time"),
            "Size" => Form::Plain("size"),
            "Processors" => Form::Plain("number, two decimals at most"),
            other => self.named(self.file_of(of).unwrap_or(file), other),
        }
    }

    /// Returns the file that a path such as `nested::Written` names.
    fn file_of(&self, of: &Type) -> Option<usize> {
        let Type::Path(path) = of else { return None };
        let module = path.path.segments.iter().rev().nth(1)?.ident.to_string();
        self.files.iter().position(|(stem, _)| *stem == module)
    }
}

/// Returns the last name of a path and its arguments.
fn single(of: &Type) -> Option<(String, Vec<Type>)> {
    let Type::Path(path) = of else { return None };
    let last = path.path.segments.last()?;
    let mut types = Vec::new();
    if let PathArguments::AngleBracketed(arguments) = &last.arguments {
        for argument in &arguments.args {
            if let GenericArgument::Type(one) = argument {
                types.push(one.clone());
            }
        }
    }
    Some((last.ident.to_string(), types))
}

/// Returns the value of one of serde's attributes, empty if it is a word alone.
fn serde(attributes: &[Attribute], name: &str) -> Option<String> {
    let mut found = None;
    for attribute in attributes.iter().filter(|attribute| attribute.path().is_ident("serde")) {
        let read = attribute.parse_nested_meta(|meta| {
            let value = match meta.value() {
                Ok(value) => value.parse::<syn::LitStr>()?.value(),
                Err(_) => String::new(),
            };
            if meta.path.is_ident(name) {
                found = Some(value);
            }
            Ok(())
        });
        read.expect("attributes that serde takes");
    }
    found
}

/// Returns a comment as one line.
fn comment(attributes: &[Attribute]) -> String {
    let mut words: Vec<String> = Vec::new();
    for attribute in attributes {
        if let Meta::NameValue(doc) = &attribute.meta
            && doc.path.is_ident("doc")
            && let Expr::Lit(literal) = &doc.value
            && let Lit::Str(line) = &literal.lit
        {
            words.extend(line.value().split_whitespace().map(str::to_owned));
        }
    }
    words.join(" ")
}

/// Parts a comment that ends with ``Default: `1`. Example: `2`.``.
fn parts(comment: &str) -> (String, Option<String>, Option<String>) {
    let (rest, example) = match comment.rsplit_once("Example: `") {
        Some((rest, example)) => (rest.trim_end(), example.strip_suffix("`.")),
        None => (comment, None),
    };
    let (text, default) = match rest.rsplit_once("Default: ") {
        Some((text, default)) => (text.trim_end(), default.strip_suffix('.')),
        None => (rest, None),
    };
    (text.to_owned(), default.map(str::to_owned), example.map(str::to_owned))
}

/// Returns a name of Rust as serde's `kebab-case` has it: `AllowList` is `allow-list`.
fn kebab(name: &str) -> String {
    let mut all = String::new();
    for letter in name.chars() {
        if letter.is_uppercase() && !all.is_empty() {
            all.push('-');
        }
        all.extend(letter.to_lowercase());
    }
    all
}
