//! Reads `#[decode(...)]`, and the few serde attributes that matter here.

use syn::parse::Parse;
use syn::{Attribute, Expr, Lit, LitStr, Path, Token, Type};

/// What the attributes of a field say.
#[derive(Default)]
pub(crate) struct FieldAttributes {
    pub default: Option<Option<Expr>>,
    pub required: bool,
    /// The input may lack it, because the struct's `before` fills it in.
    pub implied: bool,
    pub flatten: bool,
    pub skip: bool,
    pub rename: Option<String>,
    /// Answers may lack it; also serde's `skip_serializing_if`.
    pub sometimes: bool,
    pub with: Option<Path>,
    pub schema: Option<Path>,
    pub before: Option<Path>,
    pub check: Option<Path>,
    pub limit: Option<Path>,
    /// Name of the bound and its value.
    pub bounds: Vec<(&'static str, Expr)>,
    pub min_len: Option<Expr>,
    pub max_len: Option<Expr>,
    pub pattern: Option<LitStr>,
    /// The doc comment, joined.
    pub doc: String,
}

/// What the attributes of a struct, an enum or a variant say.
#[derive(Default)]
pub(crate) struct TypeAttributes {
    pub before: Option<Path>,
    pub after: Option<Path>,
    pub ignore: Vec<LitStr>,
    pub hide: Vec<LitStr>,
    pub tag: Option<LitStr>,
    pub rename: Option<LitStr>,
    pub shown: Option<LitStr>,
    /// Of a variant: it is never read.
    pub skip: bool,
    pub doc: String,
}

impl FieldAttributes {
    pub(crate) fn read(attributes: &[Attribute]) -> syn::Result<Self> {
        let mut read = Self {
            doc: doc(attributes),
            rename: serde_rename(attributes)?,
            sometimes: is_sometimes(attributes)?,
            ..Self::default()
        };
        for attribute in attributes.iter().filter(|a| a.path().is_ident("decode")) {
            attribute.parse_nested_meta(|meta| {
                let name = meta.path.get_ident().map(ToString::to_string).unwrap_or_default();
                match name.as_str() {
                    "default" if meta.input.peek(Token![=]) => {
                        read.default = Some(Some(meta.value()?.parse()?));
                    }
                    "default" => read.default = Some(None),
                    "required" => read.required = true,
                    "implied" => read.implied = true,
                    "sometimes" => read.sometimes = true,
                    "flatten" => read.flatten = true,
                    "skip" => read.skip = true,
                    "rename" => read.rename = Some(meta.value()?.parse::<LitStr>()?.value()),
                    "with" => read.with = Some(meta.value()?.parse()?),
                    "schema" => read.schema = Some(meta.value()?.parse()?),
                    "before" => read.before = Some(meta.value()?.parse()?),
                    "check" => read.check = Some(meta.value()?.parse()?),
                    "limit" => read.limit = Some(meta.value()?.parse()?),
                    "ge" => read.bounds.push(("ge", meta.value()?.parse()?)),
                    "gt" => read.bounds.push(("gt", meta.value()?.parse()?)),
                    "le" => read.bounds.push(("le", meta.value()?.parse()?)),
                    "min_len" => read.min_len = Some(meta.value()?.parse()?),
                    "max_len" => read.max_len = Some(meta.value()?.parse()?),
                    "pattern" => read.pattern = Some(meta.value()?.parse()?),
                    _ => return Err(meta.error("unknown attribute of a field")),
                }
                Ok(())
            })?;
        }
        Ok(read)
    }
}

impl TypeAttributes {
    pub(crate) fn read(attributes: &[Attribute]) -> syn::Result<Self> {
        let mut read = Self {
            doc: doc(attributes),
            ..Self::default()
        };
        for attribute in attributes.iter().filter(|a| a.path().is_ident("decode")) {
            attribute.parse_nested_meta(|meta| {
                let name = meta.path.get_ident().map(ToString::to_string).unwrap_or_default();
                match name.as_str() {
                    "before" => read.before = Some(meta.value()?.parse()?),
                    "after" => read.after = Some(meta.value()?.parse()?),
                    "tag" => read.tag = Some(meta.value()?.parse()?),
                    "skip" => read.skip = true,
                    "rename" => read.rename = Some(meta.value()?.parse()?),
                    "shown" => read.shown = Some(meta.value()?.parse()?),
                    "ignore" | "hide" => {
                        let content;
                        syn::parenthesized!(content in meta.input);
                        let keys = content.parse_terminated(<LitStr as Parse>::parse, Token![,])?;
                        let list = if name == "hide" {
                            &mut read.hide
                        } else {
                            &mut read.ignore
                        };
                        list.extend(keys);
                    }
                    _ => return Err(meta.error("unknown attribute of a type or variant")),
                }
                Ok(())
            })?;
        }
        Ok(read)
    }
}

/// The name in `#[serde(rename = "...")]`.
fn serde_rename(attributes: &[Attribute]) -> syn::Result<Option<String>> {
    let mut found = None;
    for attribute in attributes.iter().filter(|a| a.path().is_ident("serde")) {
        attribute.parse_nested_meta(|meta| {
            if meta.path.is_ident("rename") {
                found = Some(meta.value()?.parse::<LitStr>()?.value());
            } else if meta.input.peek(Token![=]) {
                meta.value()?.parse::<Expr>()?;
            }
            Ok(())
        })?;
    }
    Ok(found)
}

/// Whether there is a `#[serde(skip_serializing_if = "...")]`.
fn is_sometimes(attributes: &[Attribute]) -> syn::Result<bool> {
    let mut found = false;
    for attribute in attributes.iter().filter(|a| a.path().is_ident("serde")) {
        attribute.parse_nested_meta(|meta| {
            found |= meta.path.is_ident("skip_serializing_if");
            if meta.input.peek(Token![=]) {
                meta.value()?.parse::<Expr>()?;
            }
            Ok(())
        })?;
    }
    Ok(found)
}

fn doc(attributes: &[Attribute]) -> String {
    let mut lines = Vec::new();
    for attribute in attributes.iter().filter(|a| a.path().is_ident("doc")) {
        if let syn::Meta::NameValue(pair) = &attribute.meta
            && let Expr::Lit(literal) = &pair.value
            && let Lit::Str(text) = &literal.lit
        {
            lines.push(text.value().trim().to_owned());
        }
    }
    lines.join(" ").trim().to_owned()
}

/// Whether a type is written `Option<...>`.
pub(crate) fn is_option(ty: &Type) -> bool {
    matches!(ty, Type::Path(path) if path.path.segments.last().is_some_and(|segment| segment.ident == "Option"))
}
