//! Structs with named fields.

use proc_macro2::TokenStream;
use quote::{format_ident, quote};
use syn::{DataStruct, DeriveInput, Field, Fields, Ident};

use crate::attributes::{FieldAttributes, TypeAttributes, is_option};

pub(crate) fn expand(input: &DeriveInput, data: &DataStruct) -> syn::Result<TokenStream> {
    let Fields::Named(fields) = &data.fields else {
        return Err(syn::Error::new_spanned(
            input,
            "only structs with named fields can be decoded",
        ));
    };
    let name = &input.ident;
    let attributes = TypeAttributes::read(&input.attrs)?;
    let (generics, type_generics, where_clause) = input.generics.split_for_impl();

    let fields = fields
        .named
        .iter()
        .map(|field| Ok((field, FieldAttributes::read(&field.attrs)?)))
        .collect::<syn::Result<Vec<_>>>()?;
    let reads = fields
        .iter()
        .map(|(field, attributes)| read(field, attributes))
        .collect::<syn::Result<Vec<_>>>()?;
    let builds = fields.iter().map(|(field, _)| {
        let ident = field.ident.as_ref();
        let local = local(field);
        quote!(#ident: #local?)
    });
    let schemas = fields.iter().map(|(field, attributes)| schema(field, attributes));
    let ignored = attributes
        .ignore
        .iter()
        .chain(&attributes.hide)
        .map(|key| quote!(fields.ignore(#key);));
    let before = attributes.before.as_ref().map(|path| {
        quote! {
            let replaced = cx.before(value, #path)?;
            let value = replaced.as_ref().unwrap_or(value);
        }
    });
    let after = attributes
        .after
        .as_ref()
        .map(|path| quote!(let decoded = cx.after(value, decoded, #path)?;));
    let ignored_keys = &attributes.ignore;
    let doc = &attributes.doc;
    let title = name.to_string();
    let shorthand = attributes.before.is_some();

    Ok(quote! {
        impl #generics ::dstack_decode::DecodeFields for #name #type_generics #where_clause {
            fn decode_fields(
                fields: &mut ::dstack_decode::Fields<'_>,
                cx: &mut ::dstack_decode::Cx,
            ) -> ::core::option::Option<Self> {
                #(#ignored)*
                #(#reads)*
                ::core::option::Option::Some(Self { #(#builds),* })
            }
        }

        impl #generics ::dstack_decode::schema::SchemaFields for #name #type_generics #where_clause {
            fn schema_fields(object: &mut ::dstack_decode::schema::Object, schemas: &mut ::dstack_decode::schema::Schemas) {
                #(#schemas)*
                if !schemas.are_answers() {
                    #(object.ignored(#ignored_keys);)*
                }
            }
        }

        impl #generics ::dstack_decode::Decode for #name #type_generics #where_clause {
            fn decode(
                value: &::dstack_decode::Value,
                cx: &mut ::dstack_decode::Cx,
            ) -> ::core::option::Option<Self> {
                #before
                let decoded = cx.object(value)?;
                #after
                ::core::option::Option::Some(decoded)
            }
        }

        impl #generics ::dstack_decode::schema::Schema for #name #type_generics #where_clause {
            fn schema(schemas: &mut ::dstack_decode::schema::Schemas) -> ::dstack_decode::Value {
                schemas.object::<Self>(#title, #doc, #shorthand)
            }
        }

        impl<'de> ::serde::Deserialize<'de> for #name #type_generics #where_clause {
            fn deserialize<D: ::serde::Deserializer<'de>>(deserializer: D) -> ::core::result::Result<Self, D::Error> {
                ::dstack_decode::deserialize(deserializer)
            }
        }
    })
}

fn local(field: &Field) -> Ident {
    let name = field.ident.as_ref().map(ToString::to_string).unwrap_or_default();
    format_ident!("field_{}", name.trim_start_matches("r#"))
}

fn wire_name(field: &Field, attributes: &FieldAttributes) -> String {
    let name = || field.ident.as_ref().map(ToString::to_string).unwrap_or_default();
    attributes
        .rename
        .clone()
        .unwrap_or_else(|| name().trim_start_matches("r#").to_owned())
}

/// `let field_x: Option<T> = ...;`
fn read(field: &Field, attributes: &FieldAttributes) -> syn::Result<TokenStream> {
    let local = local(field);
    let ty = &field.ty;
    if attributes.flatten {
        return Ok(quote! {
            let #local = <#ty as ::dstack_decode::DecodeFields>::decode_fields(fields, cx);
        });
    }
    if attributes.skip {
        return Ok(quote! {
            let #local = ::core::option::Option::Some(<#ty as ::core::default::Default>::default());
        });
    }
    let key = wire_name(field, attributes);
    let decode = match &attributes.with {
        Some(path) => quote!(#path(value, cx)),
        None => quote!(<#ty as ::dstack_decode::Decode>::decode(value, cx)),
    };
    let before = attributes.before.as_ref().map(|path| {
        quote! {
            let replaced = cx.before(value, |value| #path(value, map))?;
            let value = replaced.as_ref().unwrap_or(value);
        }
    });
    let constraints = constraints(attributes);
    let check = attributes
        .check
        .as_ref()
        .map(|path| quote!(let decoded = cx.after(value, decoded, #path)?;));
    let limit = attributes
        .limit
        .as_ref()
        .map(|path| quote!(cx.limit(value, &decoded, #path)?;));
    let absent = match (&attributes.default, is_option(ty) && !attributes.required) {
        (Some(Some(expression)), _) => quote!(::core::option::Option::Some(#expression)),
        (Some(None), _) | (None, true) => {
            quote!(::core::option::Option::Some(<#ty as ::core::default::Default>::default()))
        }
        (None, false) => quote!(fields.missing(#key, cx)),
    };
    Ok(quote! {
        let #local: ::core::option::Option<#ty> = match fields.get(#key) {
            ::core::option::Option::Some(value) => {
                let map = fields.map();
                cx.at(#key, |cx| {
                    let _ = map;
                    #before
                    let decoded: #ty = #decode?;
                    #constraints
                    #check
                    #limit
                    ::core::option::Option::Some(decoded)
                })
            }
            ::core::option::Option::None => #absent,
        };
    })
}

fn constraints(attributes: &FieldAttributes) -> TokenStream {
    let bounds = attributes.bounds.iter().map(|(name, bound)| {
        let method = format_ident!("{name}");
        quote!(::dstack_decode::constraint::#method(&decoded, #bound, value, cx)?;)
    });
    let min = attributes
        .min_len
        .as_ref()
        .map(|len| quote!(::dstack_decode::constraint::min_len(&decoded, #len, value, cx)?;));
    let max = attributes
        .max_len
        .as_ref()
        .map(|len| quote!(::dstack_decode::constraint::max_len(&decoded, #len, value, cx)?;));
    let pattern = attributes.pattern.as_ref().map(|pattern| {
        quote! {{
            static PATTERN: ::std::sync::OnceLock<::core::option::Option<::dstack_decode::Regex>> =
                ::std::sync::OnceLock::new();
            ::dstack_decode::constraint::pattern(&decoded, &PATTERN, #pattern, value, cx)?;
        }}
    });
    quote!(#(#bounds)* #min #max #pattern)
}

/// Adds the field to the object's schema.
fn schema(field: &Field, attributes: &FieldAttributes) -> TokenStream {
    let ty = &field.ty;
    if attributes.flatten {
        return quote!(<#ty as ::dstack_decode::schema::SchemaFields>::schema_fields(object, schemas););
    }
    if attributes.skip {
        return TokenStream::new();
    }
    let key = wire_name(field, attributes);
    let doc = &attributes.doc;
    let required =
        !attributes.implied && attributes.default.is_none() && (!is_option(ty) || attributes.required);
    let always = !attributes.sometimes;
    let bounds = attributes.bounds.iter().map(|(name, bound)| {
        let keyword = match *name {
            "ge" => "minimum",
            "gt" => "exclusiveMinimum",
            _ => "maximum",
        };
        quote!(schema.set(#keyword, #bound);)
    });
    let min = attributes
        .min_len
        .as_ref()
        .map(|len| quote!(schema.set_length("min", #len);));
    let max = attributes
        .max_len
        .as_ref()
        .map(|len| quote!(schema.set_length("max", #len);));
    let pattern = attributes
        .pattern
        .as_ref()
        .map(|pattern| quote!(schema.set("pattern", #pattern);));
    let own = match &attributes.schema {
        Some(path) => quote!(::dstack_decode::schema::Property::from(#path(schemas))),
        None => quote!(::dstack_decode::schema::Property::of::<#ty>(schemas)),
    };
    quote! {{
        let mut schema = #own;
        schema.describe(#doc);
        #(#bounds)* #min #max #pattern
        object.property(#key, schema, if schemas.are_answers() { #always } else { #required });
    }}
}
