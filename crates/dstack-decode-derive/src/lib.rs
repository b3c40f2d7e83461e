//! `#[derive(Decode)]` for the wire and YAML types.
//!
//! # Structs
//! Implements `Decode`, `DecodeFields` (so that it can be flattened into another struct), `Schema`, and serde's
//! `Deserialize` (lenient). A field of type `Option` is `None` when absent or null; any other field is required
//! unless it has a default.
//!
//! | on a field | meaning |
//! |---|---|
//! | `default`, `default = expr` | value when absent |
//! | `required` | an `Option` that must be present (may be null) |
//! | `implied` | the input may lack it, because the struct's `before` fills it in |
//! | `sometimes` | answers may lack it; serde's `skip_serializing_if` says the same |
//! | `flatten` | the fields of another struct |
//! | `skip` | never read: the default |
//! | `rename = "key"` | name on the wire (otherwise serde's `rename`, otherwise the field's) |
//! | `with = path` | `fn(&Value, &mut Cx) -> Option<T>` instead of `T::decode` |
//! | `schema = path` | `fn(&mut Schemas) -> Value` instead of the type's schema: for fields that take more forms |
//! | `before = path` | `fn(&Value, &Map) -> Result<Option<Value>, String>`: checks or replaces the input; the map is the whole object |
//! | `check = path` | `fn(T) -> Result<T, String>` after decoding |
//! | `limit = path` | `fn(&T) -> Result<(), String>` after `check`, of requests and files only: what is stored passes |
//! | `ge`, `gt`, `le = number` | bounds |
//! | `min_len`, `max_len = number` | length of a text or list |
//! | `pattern = "regex"` | what a text must match |
//!
//! | on the struct | meaning |
//! |---|---|
//! | `before = path` | `fn(&Value) -> Result<Option<Value>, String>`: checks or replaces the input |
//! | `after = path` | `fn(Self) -> Result<Self, String>` once all fields are right |
//! | `ignore("key", ...)` | keys that are accepted and dropped |
//! | `hide("key", ...)` | the same, but not part of the schema |
//!
//! # Enums
//! Of variants with one field each, told apart by the key in `#[decode(tag = "key")]`; each variant names its tag in
//! `#[decode(rename = "tag")]`, and may give the tag's form in messages in `shown = "..."`. Of a variant with `#[decode(skip)]` nothing is
//! read: who reads such a type looks for it first.

mod attributes;
mod structs;
mod unions;

use proc_macro::TokenStream;
use syn::{Data, DeriveInput, parse_macro_input};

/// See the crate's documentation.
#[proc_macro_derive(Decode, attributes(decode))]
pub fn derive_decode(input: TokenStream) -> TokenStream {
    let input = parse_macro_input!(input as DeriveInput);
    let result = match &input.data {
        Data::Struct(data) => structs::expand(&input, data),
        Data::Enum(data) => unions::expand(&input, data),
        Data::Union(_) => Err(syn::Error::new_spanned(&input, "unions cannot be decoded")),
    };
    result.unwrap_or_else(|error| error.to_compile_error()).into()
}
