//! The numbers of a convolution on the host.

use std::borrow::Cow;
use std::fmt;

use half::f16;

use crate::matmul::{F16ToF32, I8};
use crate::ops::ElementType;

/// A feature or a weight: [`i8`], [`u8`] or [`half::f16`].
pub trait Element: sealed::Element + Copy + Default + fmt::Debug + Send + Sync + 'static {}

/// A result: [`i8`], [`u8`], [`i32`], [`half::f16`] or [`f32`].
pub trait Output: sealed::Output {}

/// Which results a convolution of these elements can have.
pub trait Gives<Out>: Element
where
    Out: Output,
{
}

macro_rules! gives {
    ($($element:ty => $($out:ty),+;)+) => {
        $(impl Element for $element {}
        $(impl Gives<$out> for $element {})+)+
    };
}

gives! {
    i8 => i8, i32;
    u8 => u8, i32;
    f16 => f16, f32;
}

pub(crate) mod sealed {
    use std::borrow::Cow;

    use super::ElementType;
    use crate::matmul::Numbers;

    /// What only this crate needs to know of an element.
    pub trait Element: Sized {
        /// What it is in memory.
        const TYPE: ElementType;
        /// 1, as the datapath sees it.
        const ONE: Self;
        /// The element that the datapath sees as a zero point, or 0 of real numbers.
        fn from_zero_point(zero_point: i32) -> Self;
        /// Appends elements as they are in memory.
        fn put(values: &[Self], bytes: &mut Vec<u8>);
        /// The product of matrices that multiplies them.
        type Product: Numbers;
        /// An element as a factor of that product.
        fn factor(self) -> <Self::Product as Numbers>::Factor;
        /// Elements as factors.
        fn factors(values: &[Self]) -> Cow<'_, [<Self::Product as Numbers>::Factor]>;
        /// A sum of that product.
        fn real(sum: <Self::Product as Numbers>::Sum) -> f64;
    }

    /// What only this crate needs to know of a result.
    pub trait Output: Copy + Default + std::fmt::Debug + Send + Sync + 'static {
        /// What it is in memory.
        const TYPE: ElementType;
        /// Reads results as they are in memory.
        fn get(bytes: &[u8], results: &mut [Self]);
        /// The nearest result, or the last one in that direction.
        fn from_real(value: f64) -> Self;
    }
}

macro_rules! number {
    ($number:ty, $type:ident, $real:expr) => {
        impl Output for $number {}

        impl sealed::Output for $number {
            const TYPE: ElementType = ElementType::$type;

            fn get(bytes: &[u8], results: &mut [Self]) {
                results.iter_mut().zip(bytes.as_chunks().0).for_each(|(to, from)| *to = Self::from_le_bytes(*from));
            }

            fn from_real(value: f64) -> Self {
                let real: fn(f64) -> Self = $real;
                real(value)
            }
        }
    };
}

// CAST: these casts saturate.
number!(i8, I8, |value| value as i8);
number!(u8, U8, |value| value as u8);
number!(i32, I32, |value| value as i32);
number!(f32, F32, |value| value as f32);
// As the hardware narrows. SOURCE: npu-spec 5.7.
number!(f16, F16, |value| f16::from_f64(value.clamp(f16::MIN.to_f64(), f16::MAX.to_f64())));

impl sealed::Element for i8 {
    const TYPE: ElementType = ElementType::I8;
    const ONE: Self = 1;

    fn from_zero_point(zero_point: i32) -> Self {
        // CAST: zero points are inside the element type.
        zero_point as Self
    }

    fn put(values: &[Self], bytes: &mut Vec<u8>) {
        bytes.extend(values.iter().map(|value| value.cast_unsigned()));
    }

    type Product = I8;

    fn factor(self) -> i8 {
        self
    }

    fn factors(values: &[Self]) -> Cow<'_, [i8]> {
        Cow::Borrowed(values)
    }

    fn real(sum: i32) -> f64 {
        sum.into()
    }
}

impl sealed::Element for u8 {
    const TYPE: ElementType = ElementType::U8;
    const ONE: Self = 129;

    fn from_zero_point(zero_point: i32) -> Self {
        // CAST: zero points are inside the element type.
        zero_point as Self
    }

    fn put(values: &[Self], bytes: &mut Vec<u8>) {
        bytes.extend_from_slice(values);
    }

    type Product = I8;

    fn factor(self) -> i8 {
        // Less 128, as the signed datapath sees it.
        (self ^ 0x80).cast_signed()
    }

    fn factors(values: &[Self]) -> Cow<'_, [i8]> {
        values.iter().map(|value| value.factor()).collect()
    }

    fn real(sum: i32) -> f64 {
        sum.into()
    }
}

impl sealed::Element for f16 {
    const TYPE: ElementType = ElementType::F16;
    const ONE: Self = Self::ONE;

    fn from_zero_point(_: i32) -> Self {
        Self::ZERO
    }

    fn put(values: &[Self], bytes: &mut Vec<u8>) {
        bytes.extend(values.iter().flat_map(|value| value.to_le_bytes()));
    }

    type Product = F16ToF32;

    fn factor(self) -> f16 {
        self
    }

    fn factors(values: &[Self]) -> Cow<'_, [f16]> {
        Cow::Borrowed(values)
    }

    fn real(sum: f32) -> f64 {
        sum.into()
    }
}
