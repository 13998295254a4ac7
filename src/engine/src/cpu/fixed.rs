//! Multiplying an integer by a real number in integers, as TFLite does: a 31-bit fraction and a power of two.
//!
//! TFLite rounds twice in most operators: first the product with the fraction, halves upwards; then the shift, halves
//! away from zero. Its fully connected layer rounds once, halves upwards.

use model::Activation;

use super::Quant;

/// real ≈ fraction × 2^(exponent − 31).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Multiplier {
    fraction: i32,
    exponent: i32,
}

impl Multiplier {
    /// The nearest multiplier of a real number that is not negative.
    ///
    /// # Errors
    /// A number of 2^30 or more has none; no sensible scales lead to it.
    pub(super) fn new(real: f64) -> Result<Self, String> {
        if !(real.is_finite() && (0.0..1_073_741_824.0).contains(&real)) {
            return Err(format!("scales whose ratio is {real} are not supported"));
        }
        let (mantissa, mut exponent) = split(real);
        // CAST: at most 2^31, and i64 holds it.
        let mut fraction = (mantissa * 2_147_483_648.0).round() as i64;
        if fraction == 1 << 31 {
            fraction /= 2;
            exponent += 1;
        }
        if exponent < -31 {
            return Ok(Self { fraction: 0, exponent: 0 });
        }
        // CAST: below 2^31 after the correction above.
        Ok(Self { fraction: fraction as i32, exponent })
    }

    /// The multiplier of the mean of `count` values, with as many bits of the fraction as fit.
    ///
    /// # Errors
    /// More than 2^31 values.
    pub(super) fn divided_by(self, count: usize) -> Result<Self, String> {
        let count = i32::try_from(count).map_err(|_| format!("a mean of {count} values is not computed on the CPU"))?;
        let bits = count.ilog2().min(31_u32.saturating_add_signed(self.exponent));
        // CAST: the quotient is at most the fraction, as 2^bits is at most the count; and there are at most 31 bits.
        let fraction = ((i64::from(self.fraction) << bits) / i64::from(count)) as i32;
        Ok(Self { fraction, exponent: self.exponent - bits as i32 })
    }

    /// value × real, rounded once.
    pub(super) fn apply_once(self, value: i32) -> i32 {
        // The exponent is between -31 and 30, so the shift is between 1 and 62.
        let shift = 31 - self.exponent;
        let product = i64::from(value) * i64::from(self.fraction);
        let rounded = product.saturating_add(1 << (shift - 1)) >> shift;
        // CAST: clamped.
        rounded.clamp(i32::MIN.into(), i32::MAX.into()) as i32
    }

    /// value × real, rounded twice.
    pub(super) fn apply(self, value: i32) -> i32 {
        let (left, right) = (self.exponent.max(0), (-self.exponent).max(0));
        let value = value.wrapping_shl(left.unsigned_abs());
        let product = i64::from(value) * i64::from(self.fraction);
        let nudge = if product >= 0 { 1 << 30 } else { 1 - (1 << 30) };
        // CAST: the fraction is below 2^31, so the quotient is within the value's range.
        shift_right((product.wrapping_add(nudge) / (1 << 31)) as i32, right.unsigned_abs())
    }
}

/// value / 2^bits, half away from zero; bits is at most 31.
fn shift_right(value: i32, bits: u32) -> i32 {
    let mask = (1_i64 << bits) - 1;
    let remainder = i64::from(value) & mask;
    let threshold = (mask >> 1) + i64::from(value < 0);
    // CAST: a right shift brings the value nearer to zero.
    (i64::from(value) >> bits) as i32 + i32::from(remainder > threshold)
}

/// mantissa × 2^exponent with the mantissa in [0.5, 1), or 0.
fn split(real: f64) -> (f64, i32) {
    if real == 0.0 {
        return (0.0, 0);
    }
    // A subnormal number has no leading one; scaling brings it back.
    let (real, offset) = if real.is_subnormal() { (real * 2_f64.powi(64), -64) } else { (real, 0) };
    let bits = real.to_bits();
    // CAST: eleven bits.
    let exponent = (bits >> 52 & 0x7ff) as i32 - 1022;
    (f64::from_bits(bits & !(0x7ff << 52) | 1022 << 52), exponent + offset)
}

/// The range that a fused activation leaves of a real number.
pub(super) const fn real_range(activation: Activation) -> [f32; 2] {
    match activation {
        Activation::None => [f32::NEG_INFINITY, f32::INFINITY],
        Activation::Relu => [0.0, f32::INFINITY],
        Activation::ReluN1To1 => [-1.0, 1.0],
        Activation::Relu6 => [0.0, 6.0],
    }
}

/// The same range of quantised numbers.
pub(super) fn quantized_range(activation: Activation, quant: &Quant) -> [i32; 2] {
    let [low, high] = real_range(activation);
    let [min, max] = quant.byte.range();
    // CAST: a quotient outside i32 saturates, and the clamp makes it the end of the range.
    let at = |real: f32| ((real / quant.scale).round() as i32).saturating_add(quant.zero_point).clamp(min, max);
    [if low.is_finite() { at(low) } else { min }, if high.is_finite() { at(high) } else { max }]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn halves_round_upwards_in_the_fraction_and_away_from_zero_in_the_shift() {
        let [half, quarter] = [0.5, 0.25].map(|real| Multiplier::new(real).unwrap());
        assert_eq!([3, 1, -1, -3].map(|value| half.apply(value)), [2, 1, 0, -1]);
        assert_eq!([12, 4, -4, -12].map(|value| quarter.apply(value)), [3, 1, -1, -3]);
        assert_eq!([2, -2, -6].map(|value| quarter.apply(value)), [1, -1, -2]);
    }

    #[test]
    fn one_rounding_is_not_two() {
        let [quarter, half] = [0.25, 0.5].map(|real| Multiplier::new(real).unwrap());
        assert_eq!([6, 2, -2, -6].map(|value| quarter.apply_once(value)), [2, 1, 0, -1]);
        assert_eq!([3, 1, -1, -3].map(|value| half.apply_once(value)), [2, 1, 0, -1]);
        let third = Multiplier::new(0.3 / 4.0).unwrap();
        let differs = (-1000..1000).filter(|&value| third.apply(value) != third.apply_once(value)).count();
        assert!(differs > 0);
    }

    #[test]
    fn a_ratio_too_small_for_the_shift_is_zero() {
        assert_eq!(Multiplier::new(1e-12).unwrap().apply(i32::MAX), 0);
        assert_eq!(Multiplier::new(f64::MIN_POSITIVE / 2.0).unwrap().apply(1), 0);
    }

    #[test]
    fn a_ratio_without_meaning_is_refused() {
        for real in [f64::NAN, f64::INFINITY, -1.0, 2e9] {
            assert!(Multiplier::new(real).is_err());
        }
    }

    proptest! {
        #[test]
        fn the_product_is_within_one_of_the_real_one(value in -(1 << 20)..1 << 20, real in 1e-9..500.0) {
            let product = f64::from(Multiplier::new(real).unwrap().apply(value));
            prop_assert!((product - f64::from(value) * real).abs() <= 1.0);
        }
    }
}
