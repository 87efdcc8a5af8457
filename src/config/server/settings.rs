//! Settings of `cofferdam.toml`: each is declared once, with its kind, its default and its comment; how it is read and
//! shown, and its place in the reference, follow from that.

use std::collections::BTreeSet;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use crate::document::{Document, FileKey, Form, Item, Read, ReadError, Table};
use model::units::{Size, Time};

/// A value in force and where it came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Setting<T> {
    pub value: T,
    pub source: ValueSource,
}

/// Origin of a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ValueSource {
    /// Compiled in, or computed from the machine.
    Default,
    /// Written at this line of this file.
    File { file: String, line: usize },
    /// Typed for this flag, or in this variable of the environment.
    Given(&'static str),
}

impl fmt::Display for ValueSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File { file, line } => write!(f, "{file}:{line}"),
            Self::Given(by) => f.write_str(by),
        }
    }
}

/// One line of `cofferdam config show`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShownLine {
    /// The key as `cofferdam.toml` has it, such as `server.queue`.
    pub key: &'static str,
    pub value: String,
    pub source: ValueSource,
}

impl<T> Setting<T> {
    /// Sets a default that is computed.
    pub(crate) fn set_default(&mut self, value: T) {
        if self.source == ValueSource::Default {
            self.value = value;
        }
    }

    pub(crate) fn line<K: Kind<Value = T>>(&self, key: &'static str) -> ShownLine {
        ShownLine { key, value: K::show(&self.value), source: self.source.clone() }
    }
}

/// A file that is read.
#[derive(Clone, Copy)]
pub(crate) struct File<'d> {
    pub document: &'d Document,
    pub root: Item<'d>,
}

impl<'d> File<'d> {
    /// Returns the value of a key in a section.
    pub(crate) fn value(self, section: &str, key: &str) -> Option<Item<'d>> {
        self.root.table().ok()?.get(section)?.table().ok()?.get(key)
    }

    pub(crate) fn setting<T>(self, item: Item<'_>, value: T) -> Setting<T> {
        let file = self.document.file.clone();
        let line = self.document.line(item.span().start);
        Setting { value, source: ValueSource::File { file, line } }
    }
}

/// A section of a file, or the absence of one.
#[derive(Clone, Copy)]
pub(crate) struct Section<'d>(Option<(File<'d>, Table<'d>)>);

impl<'d> Section<'d> {
    /// Returns the section of a file, which has only these keys.
    pub(crate) fn open(
        file: Option<File<'d>>,
        name: &str,
        keys: &[&str],
    ) -> Result<Self, ReadError> {
        let Some(file) = file else { return Ok(Self(None)) };
        let Some(item) = file.root.table()?.get(name) else { return Ok(Self(None)) };
        let table = item.table()?;
        table.only(keys, &[])?;
        Ok(Self(Some((file, table))))
    }

    pub(crate) fn setting<K: Kind>(
        self,
        key: &str,
        default: K::Value,
    ) -> Result<Setting<K::Value>, ReadError> {
        let found = self.0.and_then(|(file, table)| Some((file, table.get(key)?)));
        match found {
            None => Ok(Setting { value: default, source: ValueSource::Default }),
            Some((file, item)) => Ok(file.setting(item, K::read(item)?)),
        }
    }
}

/// Settings of one section or of several.
pub(crate) trait Settings: Sized {
    /// Reads the settings; without a file each has its default.
    fn read(file: Option<File<'_>>) -> Result<Self, ReadError>;

    /// Adds a line for each setting, in the order of the declaration.
    fn show(&self, lines: &mut Vec<ShownLine>);

    /// Adds the keys of the file.
    fn keys(keys: &mut Vec<FileKey>);
}

/// Declares the settings of some sections: a struct, and its [`Settings`].
///
/// A setting that is named otherwise than its key has the key after its name. A section whose
/// settings are of another struct is `SECTION => FIELD: STRUCT {}`.
macro_rules! settings {
    (
        $(#[doc = $text:literal])*
        pub struct $name:ident {
            $(
                $(#[doc = $about:literal])*
                $section:ident $(=> $part:ident : $part_type:ty)? {
                    $(
                        $(#[doc = $comment:literal])*
                        $field:ident $($key:literal)? : $kind:ty = $default:expr,
                    )*
                }
            )*
        }
    ) => {
        $(#[doc = $text])*
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub struct $name {
            $(
                $(pub $part: $part_type,)?
                $(
                    $(#[doc = $comment])*
                    pub $field: $crate::server::settings::Setting<<$kind as $crate::server::settings::Kind>::Value>,
                )*
            )*
        }

        impl $name {
            /// Names of the sections.
            #[allow(dead_code, reason = "only the whole file asks for them")]
            const SECTIONS: &'static [&'static str] = &[$(stringify!($section)),*];
        }

        impl $crate::server::settings::Settings for $name {
            fn read(
                file: Option<$crate::server::settings::File<'_>>,
            ) -> Result<Self, crate::document::ReadError> {
                $(
                    $(let $part = <$part_type as $crate::server::settings::Settings>::read(file)?;)?
                    settings!(@open section file $section [$($part)?] [
                        $(settings!(@name $field $($key)?)),*
                    ]);
                    $(
                        let $field = section
                            .setting::<$kind>(settings!(@name $field $($key)?), $default)?;
                    )*
                )*
                Ok(Self { $($($part,)? $($field,)*)* })
            }

            fn show(&self, lines: &mut Vec<$crate::server::settings::ShownLine>) {
                $(
                    $($crate::server::settings::Settings::show(&self.$part, lines);)?
                    $(lines.push(self.$field.line::<$kind>(
                        concat!(stringify!($section), ".", settings!(@name $field $($key)?)),
                    ));)*
                )*
            }

            fn keys(keys: &mut Vec<crate::document::FileKey>) {
                use crate::document::{Form, FileKey, KeyTable};
                $(
                    settings!(@keys keys $section [$($part_type)?] [$($about)*] vec![
                        $(FileKey {
                            name: settings!(@name $field $($key)?),
                            comment: concat!($($comment, "\n"),*),
                            is_required: false,
                            form: <$kind as $crate::server::settings::Kind>::form(),
                        }),*
                    ]);
                )*
            }
        }
    };
    (@name $field:ident) => { stringify!($field) };
    (@name $field:ident $key:literal) => { $key };
    (@open $section_value:ident $file:ident $section:ident [] [$($name:expr),*]) => {
        let $section_value =
            $crate::server::settings::Section::open($file, stringify!($section), &[$($name),*])?;
    };
    (@open $section_value:ident $file:ident $section:ident [$part:ident] []) => {};
    (@keys $keys:ident $section:ident [] [$($about:literal)*] $all:expr) => {
        let comment = concat!($($about, "\n"),*);
        $keys.push(FileKey {
            name: stringify!($section),
            comment,
            is_required: false,
            form: Form::Table(KeyTable { comment, keys: $all }),
        });
    };
    (@keys $keys:ident $section:ident [$part:ty] [] $all:expr) => {
        <$part as $crate::server::settings::Settings>::keys($keys);
    };
}

pub(crate) use settings;

/// A kind of setting: how it is read, shown and described.
pub trait Kind {
    type Value;
    /// Type of the values in the file.
    type Written: Read;

    /// Reads a value.
    fn read(item: Item<'_>) -> Result<Self::Value, ReadError>;

    /// Returns the value as `config show` prints it.
    fn show(value: &Self::Value) -> String;

    /// Returns the form of the values in the file.
    fn form() -> Form {
        Self::Written::form()
    }
}

/// A setting that may be absent, which is shown as nothing.
pub struct Optional<K>(std::marker::PhantomData<K>);

impl<K: Kind> Kind for Optional<K> {
    type Value = Option<K::Value>;
    type Written = K::Written;

    fn read(item: Item<'_>) -> Result<Self::Value, ReadError> {
        K::read(item).map(Some)
    }

    fn show(value: &Self::Value) -> String {
        value.as_ref().map_or(String::new(), K::show)
    }

    fn form() -> Form {
        K::form()
    }
}

/// Makes the error about a value out of a range. A bound that is absent is not named.
fn out_of_range(item: Item<'_>, min: Option<String>, max: Option<String>) -> ReadError {
    item.error(match (min, max) {
        (Some(min), Some(max)) => format!("must be {min} to {max}"),
        (None, Some(max)) => format!("must be {max} at most"),
        (Some(min), None) => format!("must be {min} at least"),
        (None, None) => "is out of range".to_owned(),
    })
}

/// Returns the JSON Schema of a whole number within a range.
fn whole_form(min: u64, max: Option<u64>) -> Form {
    let max = max.map_or(String::new(), |max| format!(r#", "maximum": {max}"#));
    Form::plain("whole number", format!(r#""type": "integer", "minimum": {min}{max}"#))
}

/// A number within a range.
pub struct WholeValue<const MIN: u32, const MAX: u32>;
/// A number above zero.
pub type CountValue = WholeValue<1, { u32::MAX }>;

impl<const MIN: u32, const MAX: u32> Kind for WholeValue<MIN, MAX> {
    type Value = u32;
    type Written = u32;

    fn read(item: Item<'_>) -> Result<u32, ReadError> {
        let number = u32::read(item)?;
        let is_bounded = MAX < u32::MAX;
        match (MIN..=MAX).contains(&number) {
            true => Ok(number),
            false if MIN == 1 && !is_bounded => Err(item.error("must be above zero")),
            false => {
                let min = (MIN > 0).then(|| MIN.to_string());
                Err(out_of_range(item, min, is_bounded.then(|| MAX.to_string())))
            }
        }
    }

    fn show(number: &u32) -> String {
        number.to_string()
    }

    fn form() -> Form {
        whole_form(MIN.into(), (MAX < u32::MAX).then_some(MAX.into()))
    }
}

/// A size in bytes within a range.
pub struct BytesValue<const MIN: u64, const MAX: u64>;
/// A size of any number of bytes.
pub type AnySize = BytesValue<0, { u64::MAX }>;

impl<const MIN: u64, const MAX: u64> Kind for BytesValue<MIN, MAX> {
    type Value = u64;
    type Written = Size;

    fn read(item: Item<'_>) -> Result<u64, ReadError> {
        let Size(bytes) = Size::read(item)?;
        match (MIN..=MAX).contains(&bytes) {
            true => Ok(bytes),
            false => {
                let shown = |bytes: u64| Size(bytes).to_string();
                let max = (MAX < u64::MAX).then(|| shown(MAX));
                Err(out_of_range(item, (MIN > 1).then(|| shown(MIN)), max))
            }
        }
    }

    fn show(bytes: &u64) -> String {
        Size(*bytes).to_string()
    }
}

/// A time of at most so many seconds.
pub struct PeriodValue<const MIN: u64, const MAX: u64>;
/// A time of any length.
pub type AnyTime = PeriodValue<0, { u64::MAX }>;

impl<const MIN: u64, const MAX: u64> Kind for PeriodValue<MIN, MAX> {
    type Value = Duration;
    type Written = Time;

    fn read(item: Item<'_>) -> Result<Duration, ReadError> {
        let Time(time) = Time::read(item)?;
        match (Duration::from_secs(MIN)..=Duration::from_secs(MAX)).contains(&time) {
            true => Ok(time),
            false => {
                let shown = |seconds: u64| match seconds {
                    3600 => "1h".to_owned(),
                    seconds => format!("{seconds}s"),
                };
                let max = (MAX < u64::MAX).then(|| shown(MAX));
                Err(out_of_range(item, (MIN > 0).then(|| shown(MIN)), max))
            }
        }
    }

    fn show(time: &Duration) -> String {
        Time(*time).to_string()
    }
}

/// True or false.
pub struct FlagValue;

impl Kind for FlagValue {
    type Value = bool;
    type Written = bool;

    fn read(item: Item<'_>) -> Result<bool, ReadError> {
        bool::read(item)
    }

    fn show(flag: &bool) -> String {
        flag.to_string()
    }
}

/// Names, in any order.
pub struct NamesValue;

impl Kind for NamesValue {
    type Value = BTreeSet<String>;
    type Written = BTreeSet<String>;

    fn read(item: Item<'_>) -> Result<BTreeSet<String>, ReadError> {
        BTreeSet::read(item)
    }

    fn show(names: &BTreeSet<String>) -> String {
        names.iter().cloned().collect::<Vec<_>>().join(", ")
    }
}

/// An absolute path.
pub struct AbsolutePath;

impl Kind for AbsolutePath {
    type Value = PathBuf;
    type Written = PathBuf;

    fn read(item: Item<'_>) -> Result<PathBuf, ReadError> {
        let path = PathBuf::read(item)?;
        match path.is_absolute() {
            true => Ok(path),
            false => Err(item.error("a path must be absolute")),
        }
    }

    fn show(path: &PathBuf) -> String {
        path.display().to_string()
    }

    fn form() -> Form {
        Form::plain("path", r#""type": "string", "pattern": "^/""#)
    }
}
