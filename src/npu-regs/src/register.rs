//! The `registers!` macro and what it declares: one struct per register, and one table for all readers.

use std::fmt;

use crate::Block;

/// What the table knows of a register.
pub struct RegisterInfo {
    /// The TRM's name.
    pub name: &'static str,
    /// The block that owns it.
    pub block: Block,
    /// Offset in bytes inside the core's window.
    pub offset: u16,
    /// Its fields, highest bits first.
    pub fields: &'static [FieldInfo],
}

/// What the table knows of a register field.
pub struct FieldInfo {
    /// The TRM's name in lower case.
    pub name: &'static str,
    /// Highest bit.
    pub high: u32,
    /// Lowest bit.
    pub low: u32,
    /// The text of the field's bits, or `None` where they mean nothing.
    pub text: fn(u32) -> Option<String>,
}

impl FieldInfo {
    /// The width in bits.
    pub const fn width(&self) -> u32 {
        self.high - self.low + 1
    }

    /// The bits of this field in `value`, shifted down.
    pub const fn bits(&self, value: u32) -> u32 {
        (value >> self.low) & crate::field::mask(self.width())
    }
}

impl RegisterInfo {
    /// All bits that belong to a field.
    pub const fn mask(&self) -> u32 {
        let mut mask = 0;
        let mut i = 0;
        while i < self.fields.len() {
            mask |= crate::field::mask(self.fields[i].width()) << self.fields[i].low;
            i += 1;
        }
        mask
    }
}

impl fmt::Debug for RegisterInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// A register value that does not fit, or bits that mean nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FieldError {
    /// A value is wider than its field.
    #[error("{register}.{field}: {value} does not fit {width} bits")]
    TooWide {
        /// Register.
        register: &'static str,
        /// Field.
        field: &'static str,
        /// The value as text.
        value: String,
        /// Width of the field in bits.
        width: u32,
    },
    /// A field with a closed set of meanings holds none of them.
    #[error("{register}.{field}: {bits:#x} has no meaning")]
    Unknown {
        /// Register.
        register: &'static str,
        /// Field.
        field: &'static str,
        /// The field's bits.
        bits: u32,
    },
    /// Bits outside every field are set.
    #[error("{register}: reserved bits {bits:#010x} are set")]
    Reserved {
        /// Register.
        register: &'static str,
        /// The reserved bits.
        bits: u32,
    },
}

/// A typed register.
pub trait Register: Copy + fmt::Debug + Default + PartialEq {
    /// The register's line of the table.
    const INFO: &'static RegisterInfo;

    /// The register's 32 bits.
    ///
    /// # Errors
    /// A value wider than its field.
    fn encode(&self) -> Result<u32, FieldError>;

    /// The typed register of 32 bits.
    ///
    /// # Errors
    /// A field without meaning, or reserved bits set.
    fn decode(value: u32) -> Result<Self, FieldError>;
}

/// Fails to compile where fields overlap, are out of order or leave the 32 bits.
pub(crate) const fn assert_fields(fields: &[FieldInfo]) {
    let mut below = 32;
    let mut i = 0;
    while i < fields.len() {
        assert!(fields[i].high < below, "fields overlap or are not sorted from high to low");
        assert!(fields[i].low <= fields[i].high, "a field is written high:low");
        below = fields[i].low;
        i += 1;
    }
}

/// Declares registers: a struct each, and a table of them.
///
/// Bits are `high:low`, as the TRM prints them; fields are sorted from high to low.
macro_rules! registers {
    (table $table:ident; $(
        $(#[$doc:meta])*
        $name:ident = $($text:literal)+ @ $block:ident $(+ $offset:literal)+ {
            $($(#[$field_doc:meta])* $high:literal : $low:literal $field:ident : $kind:ty,)*
        }
    )*) => {
        $(
            $(#[$doc])*
            #[derive(Clone, Copy, Debug, Default, PartialEq)]
            #[allow(missing_docs, reason = "fields carry the TRM's names; the register says what they are for")]
            pub struct $name {
                $($(#[$field_doc])* pub $field: $kind,)*
            }

            impl $crate::Register for $name {
                const INFO: &'static $crate::RegisterInfo = &$crate::RegisterInfo {
                    name: concat!($($text),+),
                    block: $crate::Block::$block,
                    offset: 0 $(+ $offset)+,
                    fields: &[$($crate::FieldInfo {
                        name: stringify!($field),
                        high: $high,
                        low: $low,
                        text: |bits| {
                            let value = <$kind as $crate::FieldValue>::from_bits(bits, $high - $low + 1)?;
                            Some(format!("{value:?}"))
                        },
                    },)*],
                };

                fn encode(&self) -> Result<u32, $crate::FieldError> {
                    let mut value = 0;
                    $(
                        let width = $high - $low + 1;
                        let Some(bits) = $crate::FieldValue::to_bits(self.$field, width) else {
                            return Err($crate::FieldError::TooWide {
                                register: Self::INFO.name,
                                field: stringify!($field),
                                value: format!("{:?}", self.$field),
                                width,
                            });
                        };
                        value |= bits << $low;
                    )*
                    Ok(value)
                }

                fn decode(value: u32) -> Result<Self, $crate::FieldError> {
                    let reserved = value & !const { Self::INFO.mask() };
                    if reserved != 0 {
                        return Err($crate::FieldError::Reserved { register: Self::INFO.name, bits: reserved });
                    }
                    Ok(Self {
                        $($field: {
                            let width = $high - $low + 1;
                            let bits = (value >> $low) & $crate::field::mask(width);
                            let Some(value) = $crate::FieldValue::from_bits(bits, width) else {
                                return Err($crate::FieldError::Unknown {
                                    register: Self::INFO.name,
                                    field: stringify!($field),
                                    bits,
                                });
                            };
                            value
                        },)*
                    })
                }
            }

            const _: () = $crate::register::assert_fields(<$name as $crate::Register>::INFO.fields);
        )*

        pub(crate) const $table: &[&$crate::RegisterInfo] = &[$(<$name as $crate::Register>::INFO,)*];
    };
    ($($registers:tt)*) => {
        registers! { table TABLE; $($registers)* }
    };
}
