//! Enums of texts, and fields that can only have one value.

use serde_json::{Value, json};

use crate::{Cx, Problem};

/// Reports that a value is none of those allowed. `kind` is `enum` or `literal_error`.
pub fn refuse<T>(kind: &'static str, allowed: &[&str], value: &Value, cx: &mut Cx) -> Option<T> {
    let expected = list(allowed);
    let mut problem = Problem::new(kind, format!("Input should be {expected}"), value);
    problem.ctx = Some(json!({ "expected": expected }));
    problem.expected = allowed.iter().map(|text| (*text).to_owned()).collect();
    cx.report(problem)
}

/// `'a', 'b' or 'c'`.
fn list(allowed: &[&str]) -> String {
    let quoted: Vec<String> = allowed.iter().map(|text| format!("'{text}'")).collect();
    match quoted.split_last() {
        Some((last, [])) => last.clone(),
        Some((last, rest)) => format!("{} or {last}", rest.join(", ")),
        None => String::new(),
    }
}

/// An enum whose values are texts: wire values, parsing, printing, serde, [`Decode`](crate::Decode).
#[macro_export]
macro_rules! string_enum {
    ($(#[$meta:meta])* pub enum $name:ident { $($body:tt)* }) => {
        $crate::string_enum!(@define "enum", $(#[$meta])* $name { $($body)* });
    };
    ($(#[$meta:meta])* literal pub enum $name:ident { $($body:tt)* }) => {
        $crate::string_enum!(@define "literal_error", $(#[$meta])* $name { $($body)* });
    };
    (@define $kind:literal, $(#[$meta:meta])* $name:ident { $($(#[$variant_meta:meta])* $variant:ident = $text:literal,)* }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $name { $($(#[$variant_meta])* $variant,)* }

        impl $name {
            /// All values, in the reference's order.
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];
            /// All wire values, in the reference's order.
            pub const TEXTS: &'static [&'static str] = &[$($text),*];

            /// The wire value.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text,)* }
            }
        }

        impl ::std::fmt::Display for $name {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                f.write_str(self.as_str())
            }
        }

        impl ::std::str::FromStr for $name {
            type Err = ::dstack_units::ParseError;
            fn from_str(text: &str) -> ::std::result::Result<Self, Self::Err> {
                match text {
                    $($text => Ok(Self::$variant),)*
                    _ => Err(::dstack_units::ParseError::new(format!(
                        "{} is not a valid {}",
                        ::dstack_units::number::quote(text),
                        stringify!($name),
                    ))),
                }
            }
        }

        impl ::serde::Serialize for $name {
            fn serialize<S: ::serde::Serializer>(&self, serializer: S) -> ::std::result::Result<S::Ok, S::Error> {
                serializer.serialize_str(self.as_str())
            }
        }

        impl<'de> ::serde::Deserialize<'de> for $name {
            fn deserialize<D: ::serde::Deserializer<'de>>(deserializer: D) -> ::std::result::Result<Self, D::Error> {
                $crate::deserialize(deserializer)
            }
        }

        impl $crate::Decode for $name {
            fn decode(value: &$crate::Value, cx: &mut $crate::Cx) -> Option<Self> {
                match value.as_str().and_then(|text| text.parse().ok()) {
                    Some(found) => Some(found),
                    None => $crate::enums::refuse($kind, Self::TEXTS, value, cx),
                }
            }
        }

        impl $crate::schema::Schema for $name {
            fn schema(_: &mut $crate::schema::Schemas) -> $crate::Value {
                $crate::schema::texts(Self::TEXTS)
            }
        }
    };
}

/// A field that can only have one value: `tag!(pub TaskType = "task")`.
#[macro_export]
macro_rules! tag {
    ($(#[$meta:meta])* pub $name:ident = $text:literal) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
        pub struct $name;

        impl $name {
            /// The wire value.
            pub const TEXT: &'static str = $text;
        }

        impl ::serde::Serialize for $name {
            fn serialize<S: ::serde::Serializer>(&self, serializer: S) -> ::std::result::Result<S::Ok, S::Error> {
                serializer.serialize_str($text)
            }
        }

        impl $crate::Decode for $name {
            fn decode(value: &$crate::Value, cx: &mut $crate::Cx) -> Option<Self> {
                if value.as_str() == Some($text) {
                    return Some(Self);
                }
                $crate::enums::refuse("literal_error", &[$text], value, cx)
            }
        }

        impl $crate::schema::Schema for $name {
            fn schema(_: &mut $crate::schema::Schemas) -> $crate::Value {
                $crate::schema::texts(&[$text])
            }
        }
    };
}
