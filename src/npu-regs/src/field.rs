//! Values that a register field can hold.

use std::fmt;

/// A value of a register field.
pub trait FieldValue: Copy + fmt::Debug + PartialEq {
    /// The bits of the value in a field `width` bits wide, or `None` where they do not fit.
    fn to_bits(self, width: u32) -> Option<u32>;
    /// The value of `bits` in a field `width` bits wide, or `None` where they mean nothing.
    fn from_bits(bits: u32, width: u32) -> Option<Self>;
}

/// A mask of the `width` low bits.
pub(crate) const fn mask(width: u32) -> u32 {
    if width >= 32 {
        return u32::MAX;
    }
    (1 << width) - 1
}

impl FieldValue for bool {
    fn to_bits(self, _width: u32) -> Option<u32> {
        Some(u32::from(self))
    }

    fn from_bits(bits: u32, _width: u32) -> Option<Self> {
        match bits {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        }
    }
}

impl FieldValue for u32 {
    fn to_bits(self, width: u32) -> Option<u32> {
        (self <= mask(width)).then_some(self)
    }

    fn from_bits(bits: u32, _width: u32) -> Option<Self> {
        Some(bits)
    }
}

impl FieldValue for i32 {
    fn to_bits(self, width: u32) -> Option<u32> {
        let unused = 32 - width;
        ((self << unused) >> unused == self).then_some(self.cast_unsigned() & mask(width))
    }

    fn from_bits(bits: u32, width: u32) -> Option<Self> {
        let unused = 32 - width;
        Some((bits << unused).cast_signed() >> unused)
    }
}

/// Declares enums for fields with a closed set of meanings.
macro_rules! field_enums {
    ($(
        $(#[$doc:meta])*
        $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $code:literal,)* }
    )*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
        pub enum $name {
            $($(#[$variant_doc])* $variant = $code,)*
        }

        impl FieldValue for $name {
            fn to_bits(self, width: u32) -> Option<u32> {
                // CAST: the codes are small literals.
                (self as u32).to_bits(width)
            }

            fn from_bits(bits: u32, _width: u32) -> Option<Self> {
                match bits {
                    $($code => Some(Self::$variant),)*
                    _ => None,
                }
            }
        }
    )*};
}

field_enums! {
    /// Element type of a datapath. SOURCE: npu-spec 1.5.
    Precision {
        /// Signed 8-bit integer.
        #[default]
        Int8 = 0,
        /// Signed 16-bit integer.
        Int16 = 1,
        /// IEEE half precision.
        Fp16 = 2,
        /// Brain float.
        Bf16 = 3,
        /// Signed 32-bit integer.
        Int32 = 4,
        /// IEEE single precision.
        Fp32 = 5,
        /// Signed 4-bit integer, two per byte.
        Int4 = 6,
        /// Single precision rounded to 10 mantissa bits.
        Tf32 = 7,
    }

    /// Convolution kind.
    ConvMode {
        /// Every output channel sees every input channel.
        #[default]
        Direct = 0,
        /// Every output channel sees its own input channel.
        Depthwise = 3,
    }

    /// Operation of an ALU in the BS, BN and EW stages.
    AluAlgo {
        /// Larger operand.
        #[default]
        Max = 0,
        /// Smaller operand.
        Min = 1,
        /// Sum.
        Add = 2,
        /// Quotient.
        Div = 3,
        /// Difference.
        Minus = 4,
        /// Absolute value.
        Abs = 5,
        /// Negation.
        Neg = 6,
        /// Round down.
        Floor = 7,
        /// Round up.
        Ceil = 8,
    }

    /// How the element-wise operand is spread.
    EwDataMode {
        /// One operand per channel.
        #[default]
        PerChannel = 0,
        /// One operand per element.
        PerPixel = 1,
    }

    /// Element size of the element-wise operand.
    ElementSize {
        /// 4 bits.
        #[default]
        Bits4 = 0,
        /// 8 bits.
        Bits8 = 1,
        /// 16 bits.
        Bits16 = 2,
        /// 32 bits.
        Bits32 = 3,
    }

    /// Operation of the element-wise stage.
    EwOpType {
        /// What the ALU algorithm says.
        #[default]
        Alu = 0,
        /// Product.
        Mul = 1,
    }

    /// Pooling method.
    PoolingMethod {
        /// Mean of the window.
        #[default]
        Average = 0,
        /// Largest of the window.
        Max = 1,
        /// Smallest of the window.
        Min = 2,
    }
}
