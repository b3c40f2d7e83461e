//! Enums whose variants are told apart by a key of the object.

use proc_macro2::TokenStream;
use quote::quote;
use syn::{DataEnum, DeriveInput, Fields, LitStr};

use crate::attributes::TypeAttributes;

pub(crate) fn expand(input: &DeriveInput, data: &DataEnum) -> syn::Result<TokenStream> {
    let name = &input.ident;
    let attributes = TypeAttributes::read(&input.attrs)?;
    let tag = attributes
        .tag
        .ok_or_else(|| syn::Error::new_spanned(input, "an enum needs #[decode(tag = \"key\")]"))?;

    let mut names = Vec::new();
    let mut shown = Vec::new();
    let mut arms = Vec::new();
    let mut schemas = Vec::new();
    for variant in &data.variants {
        let attributes = TypeAttributes::read(&variant.attrs)?;
        if attributes.skip {
            continue;
        }
        let ident = &variant.ident;
        let rename = attributes
            .rename
            .ok_or_else(|| syn::Error::new_spanned(variant, "a variant needs #[decode(rename = \"tag\")]"))?;
        let Fields::Unnamed(fields) = &variant.fields else {
            return Err(syn::Error::new_spanned(
                variant,
                "a variant holds exactly one value",
            ));
        };
        let Some(field) = fields.unnamed.first().filter(|_| fields.unnamed.len() == 1) else {
            return Err(syn::Error::new_spanned(
                variant,
                "a variant holds exactly one value",
            ));
        };
        let ty = &field.ty;
        let in_quotes = LitStr::new(&format!("'{}'", rename.value()), rename.span());
        shown.push(attributes.shown.unwrap_or(in_quotes));
        arms.push(quote! {
            #rename => cx.member(#rename, |cx| {
                ::core::option::Option::Some(Self::#ident(<#ty as ::dstack_decode::Decode>::decode(value, cx)?))
            }),
        });
        schemas.push(quote!((#rename, <#ty as ::dstack_decode::schema::Schema>::schema(schemas))));
        names.push(rename);
    }

    Ok(quote! {
        impl ::dstack_decode::Decode for #name {
            fn decode(
                value: &::dstack_decode::Value,
                cx: &mut ::dstack_decode::Cx,
            ) -> ::core::option::Option<Self> {
                const TAGS: &[&str] = &[#(#names),*];
                const SHOWN: &[&str] = &[#(#shown),*];
                match cx.tag(value, #tag, TAGS, SHOWN)? {
                    #(#arms)*
                    _ => ::core::option::Option::None,
                }
            }
        }

        impl ::dstack_decode::schema::Schema for #name {
            fn schema(schemas: &mut ::dstack_decode::schema::Schemas) -> ::dstack_decode::Value {
                let members = ::std::vec![#(#schemas),*];
                ::dstack_decode::schema::one_of(#tag, members, schemas)
            }
        }

        impl<'de> ::serde::Deserialize<'de> for #name {
            fn deserialize<D: ::serde::Deserializer<'de>>(deserializer: D) -> ::core::result::Result<Self, D::Error> {
                ::dstack_decode::deserialize(deserializer)
            }
        }
    })
}
