//! The table of keys: a type of a file is declared once, with a comment for each key, and its reader, its JSON Schema
//! and the reference are made from that.

use std::borrow::Cow;

/// Form of a value.
#[derive(Debug, Clone)]
pub enum Form {
    /// A value with a name in words, and the JSON Schema of it.
    Plain(&'static str, Cow<'static, str>),
    /// One of these words, each with its comment.
    Words(Vec<(&'static str, &'static str)>),
    List(Box<Self>),
    /// A list of two.
    Pair(Box<Self>),
    /// A table whose keys are names of the operator's choice.
    Map(Box<Self>),
    Table(KeyTable),
}

/// A table of a file: its comment and its keys, in the order of the declaration.
#[derive(Debug, Clone)]
pub struct KeyTable {
    pub comment: &'static str,
    pub keys: Vec<FileKey>,
}

/// A key of a table.
#[derive(Debug, Clone)]
pub struct FileKey {
    pub name: &'static str,
    /// Comment that ends with ``Default: `1`. Example: `2`.`` Both are TOML between
    /// backticks; a default may be words, too.
    pub comment: &'static str,
    /// True if the file is refused without it.
    pub is_required: bool,
    pub form: Form,
}

impl Form {
    /// Returns the form of a value with a name in words, and the JSON Schema of it.
    pub fn plain(name: &'static str, rule: impl Into<Cow<'static, str>>) -> Self {
        Self::Plain(name, rule.into())
    }

    /// Returns the table that the value, or each value of the list, is.
    #[must_use]
    pub fn table(&self) -> Option<&KeyTable> {
        match self {
            Self::Table(table) => Some(table),
            Self::List(of) => of.table(),
            Self::Plain(..) | Self::Words(_) | Self::Pair(_) | Self::Map(_) => None,
        }
    }

    /// Returns the words that the value, or each value of the list, is one of.
    #[must_use]
    pub fn words(&self) -> &[(&'static str, &'static str)] {
        match self {
            Self::Words(words) => words,
            Self::List(of) => of.words(),
            Self::Plain(..) | Self::Pair(_) | Self::Map(_) | Self::Table(_) => &[],
        }
    }
}

impl FileKey {
    /// Returns the comment in one line, without the default and the example.
    #[must_use]
    pub fn text(&self) -> String {
        self.parts().0
    }

    /// Returns the default as the comment has it: words, or TOML between backticks.
    #[must_use]
    pub fn default(&self) -> Option<String> {
        self.parts().1
    }

    /// Returns the example, which is TOML.
    #[must_use]
    pub fn example(&self) -> Option<String> {
        self.parts().2
    }

    fn parts(&self) -> (String, Option<String>, Option<String>) {
        let comment = one_line(self.comment);
        let (rest, example) = match comment.rsplit_once("Example: `") {
            Some((rest, example)) => (rest.trim_end(), example.strip_suffix("`.")),
            None => (comment.as_str(), None),
        };
        let (text, default) = match rest.rsplit_once("Default: ") {
            Some((text, default)) => (text.trim_end(), default.strip_suffix('.')),
            None => (rest, None),
        };
        (text.to_owned(), default.map(str::to_owned), example.map(str::to_owned))
    }
}

/// Returns a comment with single spaces in place of its line ends.
#[must_use]
pub fn one_line(comment: &str) -> String {
    comment.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Declares a table of a file: a struct that [`Read`](super::Read) reads, with one field for each key.
///
/// The comments of the struct and of its fields are the reference of keys. A field that is named
/// otherwise than its key has the key after its name, and one that may be absent has its default
/// after `=`, unless its type is an `Option`. A last field after `..` is a struct whose keys are in
/// the same table.
#[macro_export]
macro_rules! table {
    (
        $(#[doc = $text:literal])*
        $(#[derive($derive:ident)])?
        $vis:vis struct $name:ident {
            $(
                $(#[doc = $comment:literal])*
                $field_vis:vis $field:ident $($key:literal)? : $type:ty $(= $default:expr)?,
            )*
            $(.. $part_vis:vis $part:ident : $part_type:ty,)?
        }
    ) => {
        $(#[doc = $text])*
        #[derive(Debug, Clone $(, $derive)?)]
        $vis struct $name {
            $(
                $(#[doc = $comment])*
                $field_vis $field: $type,
            )*
            $($part_vis $part: $part_type,)?
        }

        impl $name {
            const NAMES: &'static [&'static str] =
                &[$($crate::table!(@name $field $($key)?)),*];

            /// Reads the keys of this type in a table that may have others.
            fn keys_of(
                item: $crate::document::Item<'_>,
                table: $crate::document::Table<'_>,
            ) -> Result<Self, $crate::document::ReadError> {
                Ok(Self {
                    $($field: table.key(
                        item,
                        $crate::table!(@name $field $($key)?),
                        $crate::table!(@absent $($default)?),
                    )?,)*
                    $($part: <$part_type>::keys_of(item, table)?,)?
                })
            }

            /// Returns the table of these keys.
            #[allow(dead_code, reason = "only whole files are asked for their keys")]
            pub(crate) fn whole() -> $crate::document::KeyTable {
                let comment = concat!($($text, "\n"),*);
                $crate::document::KeyTable { comment, keys: Self::keys() }
            }

            fn keys() -> Vec<$crate::document::FileKey> {
                #[allow(unused_mut, reason = "only some tables have keys of another struct")]
                let mut keys = vec![$($crate::document::FileKey {
                    name: $crate::table!(@name $field $($key)?),
                    comment: concat!($($comment, "\n"),*),
                    is_required: $crate::table!(@required $type $(, $default)?),
                    form: <$type as $crate::document::Read>::form(),
                }),*];
                $(keys.extend(<$part_type>::keys());)?
                keys
            }
        }

        impl $crate::document::Read for $name {
            fn read(
                item: $crate::document::Item<'_>,
            ) -> Result<Self, $crate::document::ReadError> {
                let table = item.table()?;
                table.only(Self::NAMES, $crate::table!(@names $($part_type)?))?;
                Self::keys_of(item, table)
            }

            fn form() -> $crate::document::Form {
                $crate::document::Form::Table(Self::whole())
            }
        }
    };
    (@name $field:ident) => { stringify!($field) };
    (@name $field:ident $key:literal) => { $key };
    (@names) => { &[] };
    (@names $part:ty) => { <$part>::NAMES };
    (@absent) => { None };
    (@absent $default:expr) => { Some(|| $default) };
    (@required $type:ty) => { <$type as $crate::document::Read>::absent().is_none() };
    (@required $type:ty, $default:expr) => { false };
}

/// Declares an enum whose values are words of a file, or reads an enum that is declared elsewhere (`for TYPE`). The
/// comments of its variants are the reference.
#[macro_export]
macro_rules! words {
    (for $name:ty {
        $($(#[doc = $comment:literal])* $variant:ident = $word:literal,)*
    }) => {
        impl $crate::document::Read for $name {
            fn read(
                item: $crate::document::Item<'_>,
            ) -> Result<Self, $crate::document::ReadError> {
                $crate::document::word(item, &[$(($word, Self::$variant)),*])
            }

            fn form() -> $crate::document::Form {
                $crate::document::Form::Words(vec![$(($word, concat!($($comment, "\n"),*))),*])
            }
        }
    };
    (
        $(#[doc = $text:literal])*
        $(#[derive($($derive:ident),*)])?
        $vis:vis enum $name:ident {
            $($(#[doc = $comment:literal])* $variant:ident = $word:literal,)*
        }
    ) => {
        $(#[doc = $text])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq $(, $($derive),*)?)]
        $vis enum $name {
            $($(#[doc = $comment])* $variant,)*
        }

        #[allow(dead_code, reason = "not every enum is shown")]
        impl $name {
            $vis const ALL: [Self; [$($word),*].len()] = [$(Self::$variant),*];

            /// Returns the word of a file.
            $vis fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $word,)*
                }
            }
        }

        $crate::words!(for $name {
            $($(#[doc = $comment])* $variant = $word,)*
        });
    };
}
