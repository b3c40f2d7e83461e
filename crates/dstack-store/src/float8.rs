//! Numbers with a fraction, on their way to and from the database.

use sqlx::any::{Any, AnyTypeInfo, AnyValueRef};
use sqlx::encode::IsNull;
use sqlx::error::BoxDynError;
use sqlx::{Database, Decode, Encode, Type};

/// An `f64` whose NULL is that of an `f32`: sqlx 0.9 mixes the two up (`any/arguments.rs`), and PostgreSQL refuses a value of
/// eight bytes for a statement that was prepared with a NULL of four.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Float8(pub f64);

impl Type<Any> for Float8 {
    fn type_info() -> AnyTypeInfo {
        <f32 as Type<Any>>::type_info()
    }
    fn compatible(kind: &AnyTypeInfo) -> bool {
        <f32 as Type<Any>>::compatible(kind) || <f64 as Type<Any>>::compatible(kind)
    }
}

impl Encode<'_, Any> for Float8 {
    fn encode_by_ref(&self, buffer: &mut <Any as Database>::ArgumentBuffer) -> Result<IsNull, BoxDynError> {
        <f64 as Encode<'_, Any>>::encode_by_ref(&self.0, buffer)
    }
}

impl<'r> Decode<'r, Any> for Float8 {
    fn decode(value: AnyValueRef<'r>) -> Result<Self, BoxDynError> {
        <f64 as Decode<'r, Any>>::decode(value).map(Self)
    }
}
