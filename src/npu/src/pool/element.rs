//! Elements that can be pooled, and how they lie in an atom.

use std::fmt;

use half::f16;

use super::{PoolKind, PoolPlan};
use crate::layout::ATOM;
use crate::ops::ElementType;

/// An element that the pooling unit works on: `f16`, `i8` or `u8`.
pub trait PoolElement: sealed::PoolElement + Copy + Default + fmt::Debug {
    /// Its type.
    const ELEMENT: ElementType;
}

pub(crate) mod sealed {
    use super::{ATOM, PoolKind, PoolPlan};

    /// What only this crate needs to know of an element.
    pub trait PoolElement: Sized {
        /// Whether it is known what the hardware makes of the value.
        fn known(self, _kind: PoolKind) -> bool {
            true
        }
        /// Puts neighbouring channels of a pixel into an atom.
        fn encode(values: &[Self], atom: &mut [u8; ATOM]);
        /// Takes them out again.
        fn decode(atom: &[u8; ATOM], values: &mut [Self]);
        /// Turns means of whole windows into means of what is inside. Plans of other elements do not ask for it.
        fn rescale(_plan: &PoolPlan, _output: &mut [Self]) {}
    }
}

impl PoolElement for f16 {
    const ELEMENT: ElementType = ElementType::F16;
}

impl PoolElement for i8 {
    const ELEMENT: ElementType = ElementType::I8;
}

impl PoolElement for u8 {
    const ELEMENT: ElementType = ElementType::U8;
}

impl sealed::PoolElement for f16 {
    fn known(self, kind: PoolKind) -> bool {
        if kind.is_mean() { self.is_finite() } else { !self.is_nan() }
    }

    fn encode(values: &[Self], atom: &mut [u8; ATOM]) {
        atom.as_chunks_mut().0.iter_mut().zip(values).for_each(|(bytes, value)| *bytes = value.to_le_bytes());
    }

    fn decode(atom: &[u8; ATOM], values: &mut [Self]) {
        values.iter_mut().zip(atom.as_chunks().0).for_each(|(value, bytes)| *value = Self::from_le_bytes(*bytes));
    }

    fn rescale(plan: &PoolPlan, output: &mut [Self]) {
        super::rescale(plan, output);
    }
}

impl sealed::PoolElement for i8 {
    fn encode(values: &[Self], atom: &mut [u8; ATOM]) {
        atom.iter_mut().zip(values).for_each(|(byte, value)| *byte = value.cast_unsigned());
    }

    fn decode(atom: &[u8; ATOM], values: &mut [Self]) {
        values.iter_mut().zip(atom).for_each(|(value, byte)| *value = byte.cast_signed());
    }
}

impl sealed::PoolElement for u8 {
    // The hardware's bytes are signed: less 128, which is one flipped bit.
    fn encode(values: &[Self], atom: &mut [u8; ATOM]) {
        atom.iter_mut().zip(values).for_each(|(byte, value)| *byte = value ^ 0x80);
    }

    fn decode(atom: &[u8; ATOM], values: &mut [Self]) {
        values.iter_mut().zip(atom).for_each(|(value, byte)| *value = byte ^ 0x80);
    }
}
