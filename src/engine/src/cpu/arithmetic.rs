//! The two element kinds that windows and products are computed in.

use super::{Byte, Quant};

/// An element of a sum of products.
pub(super) trait Element: Copy + Default + Send + Sync + 'static {
    /// What products are added in.
    type Sum: Copy + Default;
    /// sum + a × b.
    fn add_product(sum: Self::Sum, a: Self, b: Self) -> Self::Sum;
}

/// A quantised number without its zero point.
impl Element for i16 {
    type Sum = i32;

    fn add_product(sum: i32, a: Self, b: Self) -> i32 {
        // TFLite adds in 32 bits without a check; a model that overflows them gives the same wrong number here.
        sum.wrapping_add(i32::from(a) * i32::from(b))
    }
}

impl Element for f32 {
    type Sum = Self;

    fn add_product(sum: Self, a: Self, b: Self) -> Self {
        sum + a * b
    }
}

/// Bytes to differences from the zero point.
pub(super) fn widen(bytes: &[u8], quant: &Quant) -> Vec<i16> {
    // CAST: both are zero points of 8-bit types, so a difference has nine bits.
    let zero_point = quant.zero_point as i16;
    match quant.byte {
        Byte::Signed => bytes.iter().map(|byte| i16::from(byte.cast_signed()) - zero_point).collect(),
        Byte::Unsigned => bytes.iter().map(|&byte| i16::from(byte) - zero_point).collect(),
    }
}
