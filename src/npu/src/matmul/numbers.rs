//! The datatypes of a matrix product: what they are in memory, and how host numbers become that.

use std::fmt;

use half::f16;
use npu_regs::Precision;

use crate::emit::Datapath;
use crate::layout::ATOM;

/// A kind of product: the type of its factors and of its sums.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Product {
    /// Half precision, results too.
    F16,
    /// Half precision, single-precision results.
    F16ToF32,
    /// 8-bit integers, 32-bit results.
    I8,
    /// 4-bit integers, 32-bit results of 16-bit partial sums.
    I4,
    /// 16-bit integers, saturated 32-bit results.
    I16,
    /// Brain floats, single-precision results.
    Bf16,
    /// Single precision of which 10 mantissa bits count, single-precision results.
    Tf32,
}

/// How results lie in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stored {
    /// Half precision.
    F16,
    /// Single precision.
    F32,
    /// 16-bit integers.
    I16,
    /// 32-bit integers.
    I32,
}

impl Product {
    /// Every kind.
    pub const ALL: [Self; 7] = [Self::F16, Self::F16ToF32, Self::I8, Self::I4, Self::I16, Self::Bf16, Self::Tf32];

    /// Bits of a factor in memory.
    pub const fn bits(self) -> usize {
        match self {
            Self::I4 => 4,
            Self::I8 => 8,
            Self::F16 | Self::F16ToF32 | Self::I16 | Self::Bf16 => 16,
            Self::Tf32 => 32,
        }
    }

    /// What the depth must be a multiple of. SOURCE: npu-spec 3.2.
    pub const fn depth_group(self) -> usize {
        match self {
            Self::Tf32 => 16,
            _ => 32,
        }
    }

    /// What the number of columns must be a multiple of. SOURCE: npu-spec 3.2.
    pub const fn column_group(self) -> usize {
        match self {
            Self::I4 => 64,
            Self::I8 => 32,
            _ => 16,
        }
    }

    /// Factors of an atom.
    pub(crate) const fn lanes(self) -> usize {
        ATOM * 8 / self.bits()
    }

    /// Bytes of `factors` factors, which fill whole atoms.
    pub(crate) const fn bytes(self, factors: usize) -> usize {
        factors * self.bits() / 8
    }

    /// Whether sums of several depth tiles can be added: saturated ones cannot.
    pub(crate) const fn splits_depth(self) -> bool {
        !matches!(self, Self::I16)
    }

    /// The most depth that sums can take: 32-bit sums of 8-bit products overflow beyond. SOURCE: npu-spec 5.3.
    pub(crate) const fn most_depth(self) -> usize {
        match self {
            Self::I8 => (1 << 17) - 1,
            _ => 1 << 24,
        }
    }

    /// How results lie in memory; `narrow`: sums of half precision leave the chip as such.
    pub(crate) const fn stored(self, narrow: bool) -> Stored {
        match self {
            Self::F16 if narrow => Stored::F16,
            Self::F16 | Self::F16ToF32 | Self::Bf16 | Self::Tf32 => Stored::F32,
            Self::I8 | Self::I16 => Stored::I32,
            Self::I4 => Stored::I16,
        }
    }

    /// SOURCE: npu-spec 4.2.
    pub(crate) fn datapath(self, stored: Stored) -> Datapath {
        let (factors, sums, qd_en) = match self {
            Self::F16 | Self::F16ToF32 => (Precision::Fp16, Precision::Fp16, true),
            Self::Bf16 => (Precision::Bf16, Precision::Bf16, true),
            // QUIRK(Q14): the DPU is silent in tf32.
            Self::Tf32 => (Precision::Tf32, Precision::Fp32, true),
            // QUIRK(Q09): without it 16 columns are produced.
            Self::I16 => (Precision::Int16, Precision::Int16, true),
            Self::I8 => (Precision::Int8, Precision::Int8, false),
            Self::I4 => (Precision::Int4, Precision::Int4, false),
        };
        let results = match stored {
            Stored::F16 => Precision::Fp16,
            Stored::F32 => Precision::Fp32,
            Stored::I16 => Precision::Int16,
            Stored::I32 => Precision::Int32,
        };
        // QUIRK(Q08), QUIRK(Q10): exactly the atoms of a group, not one more or less.
        // CAST: at most eight.
        let atoms = (self.column_group() / stored.lanes()) as u32;
        Datapath { factors, sums, results, atoms, qd_en }
    }
}

impl fmt::Display for Product {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::F16 => "fp16 → fp16",
            Self::F16ToF32 => "fp16 → fp32",
            Self::I8 => "int8 → int32",
            Self::I4 => "int4 → int32",
            Self::I16 => "int16 → int32",
            Self::Bf16 => "bf16 → fp32",
            Self::Tf32 => "tf32 → fp32",
        })
    }
}

impl Stored {
    /// Bytes of a result.
    pub(crate) const fn bytes(self) -> usize {
        match self {
            Self::F16 | Self::I16 => 2,
            Self::F32 | Self::I32 => 4,
        }
    }

    /// Results of an atom.
    pub(crate) const fn lanes(self) -> usize {
        ATOM / self.bytes()
    }
}

/// A datatype of products, by a type: [`F16`], [`F16ToF32`], [`I8`], [`I4`], [`I16`], [`Bf16`], [`Tf32`].
pub trait Numbers: sealed::Numbers<In = <Self as Numbers>::Factor, Out = <Self as Numbers>::Sum> {
    /// A factor on the host.
    type Factor: Copy + Default + fmt::Debug + Send + Sync;
    /// A result on the host.
    type Sum: Copy + Default + fmt::Debug + Send + Sync;
    /// The kind of product.
    const PRODUCT: Product;
}

pub(crate) mod sealed {
    use super::{ATOM, Stored};

    /// What only this crate needs to know of a datatype.
    pub trait Numbers: Sized + std::fmt::Debug + Send + Sync + 'static {
        /// A factor on the host.
        type In: Copy + Default;
        /// What a result in memory is read as.
        type Partial: Copy + Default + Send;
        /// What partial results are added up in.
        type Total: Copy + Default + Send;
        /// A result on the host.
        type Out: Copy + Default;

        /// Puts the factors of an atom into memory's form.
        fn encode(factors: &[Self::In], atom: &mut [u8; ATOM]);
        /// The first factor that the type cannot hold. `symmetric`: as [`crate::Options::symmetric_int4`] says.
        fn misfit(_factors: &[Self::In], _symmetric: bool) -> Option<usize> {
            None
        }
        /// Reads the results of an atom.
        fn decode(stored: Stored, atom: &[u8; ATOM], partials: &mut [Self::Partial]);
        /// Adds a partial result.
        fn add(total: &mut Self::Total, partial: Self::Partial);
        /// The result of a total.
        fn finish(total: Self::Total) -> Self::Out;
        /// Whether a result is not a number.
        fn is_nan(_partial: Self::Partial) -> bool {
            false
        }
    }
}

/// Fp16 factors and results.
#[derive(Clone, Copy, Debug)]
pub struct F16;
/// Fp16 factors, fp32 results.
#[derive(Clone, Copy, Debug)]
pub struct F16ToF32;
/// 8-bit integers, 32-bit results.
#[derive(Clone, Copy, Debug)]
pub struct I8;
/// 4-bit integers from −8 to 7, one to an `i8`; 32-bit results.
#[derive(Clone, Copy, Debug)]
pub struct I4;
/// 16-bit integers, 32-bit results that saturate.
#[derive(Clone, Copy, Debug)]
pub struct I16;
/// Fp32 factors whose low 16 bits are cut off, fp32 results.
#[derive(Clone, Copy, Debug)]
pub struct Bf16;
/// Fp32 factors that the hardware rounds to 10 mantissa bits, fp32 results.
#[derive(Clone, Copy, Debug)]
pub struct Tf32;

macro_rules! numbers {
    ($name:ident, $factor:ty => $sum:ty, $partial:ty, $total:ty, { $($body:tt)* }) => {
        impl Numbers for $name {
            type Factor = $factor;
            type Sum = $sum;
            const PRODUCT: Product = Product::$name;
        }

        impl sealed::Numbers for $name {
            type In = $factor;
            type Partial = $partial;
            type Total = $total;
            type Out = $sum;
            $($body)*
        }
    };
}

/// Encodes `$lanes` factors that lie in memory as on the host.
macro_rules! as_they_are {
    ($lanes:literal) => {
        #[inline]
        fn encode(factors: &[Self::In], atom: &mut [u8; ATOM]) {
            encode_each::<_, $lanes, { ATOM / $lanes }>(factors, atom, |factor| factor.to_le_bytes());
        }
    };
}

/// Partial results that are real numbers, added up in `$total`.
macro_rules! real_results {
    ($total:ty) => {
        #[inline]
        fn decode(stored: Stored, atom: &[u8; ATOM], partials: &mut [f32]) {
            decode_reals(stored, atom, partials);
        }

        #[inline]
        fn add(total: &mut $total, partial: f32) {
            *total += <$total>::from(partial);
        }

        #[inline]
        fn is_nan(partial: f32) -> bool {
            partial.is_nan()
        }
    };
}

/// Partial results that are integers.
macro_rules! integer_results {
    () => {
        #[inline]
        fn decode(stored: Stored, atom: &[u8; ATOM], partials: &mut [i32]) {
            decode_integers(stored, atom, partials);
        }

        #[inline]
        fn add(total: &mut i32, partial: i32) {
            // The depth is limited so that no sum exceeds 32 bits.
            *total = total.wrapping_add(partial);
        }

        #[inline]
        fn finish(total: i32) -> i32 {
            total
        }
    };
}

numbers!(F16, f16 => f16, f32, f64, {
    as_they_are!(8);
    real_results!(f64);

    #[inline]
    fn finish(total: f64) -> f16 {
        // As the hardware narrows. SOURCE: npu-spec 5.7.
        f16::from_f64(total.clamp(f16::MIN.to_f64(), f16::MAX.to_f64()))
    }
});

numbers!(F16ToF32, f16 => f32, f32, f32, {
    as_they_are!(8);
    real_results!(f32);

    #[inline]
    fn finish(total: f32) -> f32 {
        total
    }
});

numbers!(Bf16, f32 => f32, f32, f32, {
    #[inline]
    fn encode(factors: &[f32], atom: &mut [u8; ATOM]) {
        encode_each::<_, 8, 2>(factors, atom, |factor| {
            let [_, _, low, high] = factor.to_le_bytes();
            [low, high]
        });
    }

    real_results!(f32);

    #[inline]
    fn finish(total: f32) -> f32 {
        total
    }
});

numbers!(Tf32, f32 => f32, f32, f32, {
    as_they_are!(4);
    real_results!(f32);

    #[inline]
    fn finish(total: f32) -> f32 {
        total
    }
});

numbers!(I8, i8 => i32, i32, i32, {
    as_they_are!(16);
    integer_results!();
});

numbers!(I16, i16 => i32, i32, i32, {
    as_they_are!(8);
    integer_results!();
});

numbers!(I4, i8 => i32, i32, i32, {
    #[inline]
    fn encode(factors: &[i8], atom: &mut [u8; ATOM]) {
        // PANIC: whoever packs hands over the factors of an atom.
        let pairs: &[[i8; 2]; ATOM] = factors.as_chunks().0.first_chunk().expect("the factors of an atom");
        *atom = pairs.map(|[low, high]| low.cast_unsigned() & 15 | high.cast_unsigned() << 4);
    }

    fn misfit(factors: &[i8], symmetric: bool) -> Option<usize> {
        let low = if symmetric { -7 } else { -8 };
        factors.iter().position(|factor| !(low..=7).contains(factor))
    }
    integer_results!();
});

/// Encodes the factors of an atom one by one. Arrays of a known length are what a compiler makes whole moves of.
#[inline]
fn encode_each<F: Copy, const LANES: usize, const BYTES: usize>(
    factors: &[F],
    atom: &mut [u8; ATOM],
    encode: impl Fn(F) -> [u8; BYTES],
) {
    // PANIC: whoever packs hands over the factors of an atom.
    let factors: &[F; LANES] = factors.first_chunk().expect("the factors of an atom");
    atom.copy_from_slice(factors.map(encode).as_flattened());
}

#[inline]
fn decode_reals(stored: Stored, atom: &[u8; ATOM], partials: &mut [f32]) {
    match stored {
        Stored::F16 => partials.iter_mut().zip(atom.as_chunks().0).for_each(|(partial, bytes)| {
            *partial = f16::from_le_bytes(*bytes).to_f32();
        }),
        _ => partials.iter_mut().zip(atom.as_chunks().0).for_each(|(partial, bytes)| {
            *partial = f32::from_le_bytes(*bytes);
        }),
    }
}

#[inline]
fn decode_integers(stored: Stored, atom: &[u8; ATOM], partials: &mut [i32]) {
    match stored {
        Stored::I16 => partials.iter_mut().zip(atom.as_chunks().0).for_each(|(partial, bytes)| {
            *partial = i16::from_le_bytes(*bytes).into();
        }),
        _ => partials.iter_mut().zip(atom.as_chunks().0).for_each(|(partial, bytes)| {
            *partial = i32::from_le_bytes(*bytes);
        }),
    }
}
