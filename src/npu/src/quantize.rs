//! Requantisation: from exact 32-bit sums to 8-bit results with the multipliers that the hardware has.
//!
//! ```text
//! v = sat32(half_even((sum + A[c]) × C[c] >> bs_shift))         C: 16 bits, per channel; the rest per task
//! y = sat8(half_away(v × scale >> shift) + offset)              scale: 16 bits
//! ```
//!
//! A real multiplier m becomes C × scale / 2^(bs_shift + shift). SOURCE: npu-spec 5.5, 5.8 \[HW\].
//!
//! TFLite rounds twice: m = fraction × 2^-octave with a fraction between a half and one, first the sum times the
//! fraction, then the shift by the octave. The two stages of the hardware are the same two roundings where v counts in
//! steps of 2^-octave: C is the fraction with 15 bits, and scale / 2^shift is 2^-octave. So channels of one octave are
//! computed as TFLite does but for the 16th bit of the fraction, and channels should share a task with their like. A
//! rounding that differs in one element of a thousand is seen after eighty layers.

use crate::error::Unsupported;

/// Largest 16-bit multiplier. QUIRK(Q23): 0x8000 would be negative.
const MAX_FACTOR: i32 = 0x7fff;
/// Smallest multiplier of a channel whose results span all of 8 bits: half a step of it moves no result by more than a
/// sixteenth. SOURCE: npu-spec 5.5, planning rule.
const MIN_FACTOR: f64 = 2048.0;
/// Results of 8 bits.
const RESULTS: f64 = 256.0;
/// Bits of a channel multiplier that is a whole fraction.
const FACTOR_BITS: i32 = 15;
/// The output scale that only shifts, as a power of two.
const SCALE_BITS: i32 = 14;
/// Finest step of an intermediate, as an octave, with which 32 bits hold every result.
const MAX_OCTAVE: i32 = 22;
/// Octaves above that of the largest multiplier that are tried for the step of the intermediate.
const OCTAVES_TRIED: i32 = 6;

/// Limits of the signed 8-bit output, inclusive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Smallest.
    pub low: i32,
    /// Largest.
    pub high: i32,
}

impl Limits {
    /// Those of the type.
    pub const NONE: Self = Self { low: -128, high: 127 };
}

/// What one channel needs: exact sums between `low` and `high`, bias included, times `multiplier`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Channel {
    /// Real multiplier from sums to results.
    pub multiplier: f64,
    /// Smallest possible sum.
    pub low: i64,
    /// Largest possible sum.
    pub high: i64,
}

impl Channel {
    /// The exact result of a sum: half away from zero, as TFLite rounds.
    pub fn result(&self, sum: i64, offset: i32, limits: Limits) -> i32 {
        // CAST: sums are below 2^53.
        let real = (sum as f64 * self.multiplier).round() + f64::from(offset);
        // CAST: clamped to eight bits first.
        real.clamp(f64::from(limits.low), f64::from(limits.high)) as i32
    }

    /// The one result that this channel can have, where there is only one.
    pub fn constant(&self, offset: i32, limits: Limits) -> Option<i32> {
        let low = self.result(self.low, offset, limits);
        (low == self.result(self.high, offset, limits)).then_some(low)
    }

    /// The octave of the multiplier: multiplier = fraction × 2^-octave, the fraction from a half to below one.
    pub fn octave(&self) -> i32 {
        octave(self.multiplier)
    }

    /// The largest multiplier in its task that leaves this channel enough resolution: a result moves by at most a
    /// sixteenth of a step, whether the channel spans all results or only a few.
    pub fn tolerates(&self) -> f64 {
        self.multiplier * f64::from(MAX_FACTOR) / (MIN_FACTOR * self.span() / RESULTS)
    }

    /// How far results get from the output's zero point.
    fn span(&self) -> f64 {
        // CAST: sums are below 2^53.
        (self.low.abs().max(self.high.abs()) as f64 * self.multiplier).min(RESULTS)
    }
}

/// The converters of one task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Requant {
    /// Shift after the channel's multiplier.
    pub bs_shift: u32,
    /// Multiplier of the task.
    pub scale: i32,
    /// Shift after it.
    pub shift: u32,
    /// Added last: the output's zero point.
    pub offset: i32,
}

impl Requant {
    /// The intermediate value of a sum, bias included.
    pub fn intermediate(&self, sum: i64, factor: i16) -> i32 {
        let value = half_even(i128::from(sum) * i128::from(factor), self.bs_shift);
        // CAST: clamped to 32 bits.
        value.clamp(i128::from(i32::MIN), i128::from(i32::MAX)) as i32
    }

    /// The result of an intermediate value, before it is limited to 8 bits.
    pub fn unlimited(&self, value: i32) -> i64 {
        let product = i64::from(value) * i64::from(self.scale);
        half_away(product, self.shift) + i64::from(self.offset)
    }

    /// The result of a sum, bias included.
    pub fn apply(&self, sum: i64, factor: i16) -> i32 {
        // CAST: clamped to eight bits.
        self.unlimited(self.intermediate(sum, factor)).clamp(-128, 127) as i32
    }

    /// The largest intermediate value whose result does not exceed `high`.
    pub fn largest_below(&self, high: i32) -> i32 {
        // The result grows with the value, so the values that qualify are a prefix.
        let (mut low, mut above) = (i64::from(i32::MIN), i64::from(i32::MAX) + 1);
        while above - low > 1 {
            let middle = (low + above) / 2;
            // CAST: between the limits of 32 bits.
            if self.unlimited(middle as i32) <= i64::from(high) { low = middle } else { above = middle }
        }
        // CAST: as above.
        low as i32
    }

    /// Addend and multiplier of a channel whose result is always `result`.
    ///
    /// # Errors
    /// A result that no addend of 32 bits gives.
    pub fn constant(&self, result: i32) -> Result<(i32, i16), Unsupported> {
        let unit = exp2(self.bs_shift + self.shift) / f64::from(self.scale);
        // Many addends per result step, so that the nearest one is well inside.
        let factor = (unit / 8.0).floor().clamp(1.0, f64::from(MAX_FACTOR));
        let addend = (f64::from(result - self.offset) * unit / factor).round();
        // CAST: at most 15 bits; and the cast of the addend saturates, which the check below notices.
        let (addend, factor) = (addend as i32, factor as i16);
        if self.apply(addend.into(), factor) != result {
            return Err(Unsupported::new(format!("no bias gives the constant {result} with {self:?}")));
        }
        Ok((addend, factor))
    }
}

/// Converters and channel multipliers for the channels that share a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The converters.
    pub requant: Requant,
    /// Multiplier of each channel.
    pub factors: Vec<i16>,
}

/// Chooses converters for channels that share a task and together are [`Channel::tolerates`] of each other.
///
/// # Errors
/// A multiplier that is not positive and finite, or outside what the shifts reach.
pub fn plan(channels: &[Channel], offset: i32) -> Result<Plan, Unsupported> {
    if channels.iter().any(|channel| !channel.multiplier.is_normal() || channel.multiplier < 0.0) {
        return Err(Unsupported::new("a scale is zero, not finite or too small"));
    }
    // A task of constant channels may have any step that leaves their results within reach.
    let first = channels.iter().map(Channel::octave).min().unwrap_or(FACTOR_BITS).min(MAX_OCTAVE);
    // A step of more than one result would lose results: TFLite shifts the sum of such a channel before it multiplies.
    let finest = first.max(0);
    let last = (finest + OCTAVES_TRIED).min(MAX_OCTAVE);
    let steps = (finest..=last).map(|octave| Step { octave, factor_bits: FACTOR_BITS - (octave - first) });
    let steps = steps.filter(|step| step.factor_bits >= 0);
    let step = steps.min_by(|a, b| a.mismatch(channels).total_cmp(&b.mismatch(channels))).ok_or_else(|| {
        let largest = channels.iter().map(|channel| channel.multiplier).fold(0.0, f64::max);
        Unsupported::new(format!("a multiplier of {largest:e} exceeds the output shifts"))
    })?;
    // CAST: a step has at least octave 0.
    let shift = (step.octave + SCALE_BITS) as u32;
    // CAST: between 0 and 15.
    let bs_shift = step.factor_bits as u32;
    let requant = Requant { bs_shift, scale: 1 << SCALE_BITS, shift, offset };
    Ok(Plan { requant, factors: channels.iter().map(|channel| step.factor(channel)).collect() })
}

/// A step of the intermediate value, 2^-octave of a result, and the bits of the multipliers that lead there.
#[derive(Clone, Copy)]
struct Step {
    octave: i32,
    factor_bits: i32,
}

impl Step {
    fn exact(self, channel: &Channel) -> f64 {
        channel.multiplier * f64::from(self.octave + self.factor_bits).exp2()
    }

    fn factor(self, channel: &Channel) -> i16 {
        // CAST: at most 15 bits.
        self.exact(channel).round().min(f64::from(MAX_FACTOR)) as i16
    }

    /// How often results are expected to differ from TFLite's: by the bits that multipliers lack, at the results that
    /// channels reach on average, and by the first rounding where it has another step than TFLite's.
    fn mismatch(self, channels: &[Channel]) -> f64 {
        let expected = |channel: &Channel| {
            let exact = self.exact(channel);
            let bits = (f64::from(self.factor(channel)) / exact - 1.0).abs() * channel.span() / 4.0;
            let half_step = |octave: i32| f64::from(-octave.max(0) - 1).exp2();
            bits + (half_step(channel.octave()) - half_step(self.octave)).abs()
        };
        channels.iter().map(expected).sum()
    }
}

fn octave(multiplier: f64) -> i32 {
    // CAST: exponents of normal numbers.
    -(multiplier.log2().floor() as i32) - 1
}

/// The sum of both shifts with which the largest multiplier is a full channel multiplier times a full scale.
fn total_shift(largest: f64) -> Result<u32, Unsupported> {
    let shift = (exp2(14) * f64::from(MAX_FACTOR) / largest).log2().ceil();
    if !(0.0..=78.0).contains(&shift) {
        return Err(Unsupported::new(format!("a multiplier of {largest:e} exceeds the output shifts")));
    }
    // CAST: in range.
    Ok(shift as u32)
}

/// Two multipliers that share an output scale: `factor / 2^shift` each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PairPlan {
    /// Output converter. Its `bs_shift` belongs to the first multiplier.
    pub requant: Requant,
    /// First multiplier.
    pub first: i16,
    /// Second multiplier.
    pub second: i16,
    /// Shift of the second multiplier.
    pub second_shift: u32,
}

/// Chooses converters for the weighted sum of two 8-bit numbers.
///
/// # Errors
/// A multiplier that is not positive and finite, or outside what the shifts reach.
pub fn plan_pair(multipliers: [f64; 2], offset: i32) -> Result<PairPlan, Unsupported> {
    if multipliers.iter().any(|multiplier| !multiplier.is_normal() || *multiplier < 0.0) {
        return Err(Unsupported::new("a scale is zero, not finite or too small"));
    }
    let largest = multipliers[0].max(multipliers[1]);
    // One bit less than the longest scale, so that there are always many scales to choose from.
    let total = total_shift(largest)?.saturating_sub(1);
    // The smaller multiplier is brought to full length by a shift of its own.
    // CAST: logarithms of normal numbers.
    let shifts = multipliers.map(|multiplier| (largest / multiplier).log2().floor() as u32);
    if shifts.iter().any(|&shift| shift > 31) || total > 63 {
        return Err(Unsupported::new(format!("multipliers {multipliers:?} are too far apart or too small")));
    }
    let exact = |axis: usize, scale: i32| multipliers[axis] * exp2(total + shifts[axis]) / f64::from(scale);
    let worst = |scale: i32| {
        let error = |axis| (exact(axis, scale).round() / exact(axis, scale) - 1.0_f64).abs();
        f64::max(error(0), error(1))
    };
    // CAST: between 2^13 and 2^14.
    let first = (largest * exp2(total) / f64::from(MAX_FACTOR)).ceil() as i32;
    let fits = |scale: &i32| (0..2).all(|axis| exact(axis, *scale).round() <= f64::from(MAX_FACTOR));
    let scale = (first..=MAX_FACTOR).filter(fits).min_by(|&a, &b| worst(a).total_cmp(&worst(b)));
    let scale = scale.ok_or_else(|| Unsupported::new(format!("no output scale for {multipliers:?}")))?;
    // CAST: checked by `fits`.
    let [first, second] = [0, 1].map(|axis| exact(axis, scale).round() as i16);
    let requant = Requant { bs_shift: shifts[0], scale, shift: total, offset };
    Ok(PairPlan { requant, first, second, second_shift: shifts[1] })
}

/// Two to a power that shifts have.
fn exp2(power: u32) -> f64 {
    f64::from(power).exp2()
}

/// `value / 2^shift`, rounded half to even.
fn half_even(value: i128, shift: u32) -> i128 {
    if shift == 0 {
        return value;
    }
    let floor = value >> shift;
    let rest = value - (floor << shift);
    let half = 1 << (shift - 1);
    floor + i128::from(rest > half || (rest == half && floor & 1 == 1))
}

/// `value / 2^shift`, rounded half away from zero.
fn half_away(value: i64, shift: u32) -> i64 {
    if shift == 0 {
        return value;
    }
    let magnitude = (u128::from(value.unsigned_abs()) + (1 << (shift - 1))) >> shift;
    // CAST: not larger than the value it came from.
    let magnitude = magnitude as i64;
    if value < 0 { -magnitude } else { magnitude }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn channel() -> impl Strategy<Value = Channel> {
        (-18.0..-2.0f64, 1..4_000_000i64, 1..4_000_000i64).prop_map(|(log, low, high)| Channel {
            multiplier: log.exp2(),
            low: -low,
            high,
        })
    }

    proptest! {
        /// The bound behind the planning rule: with channels that tolerate each other, a result never differs from the
        /// exact one by more than two roundings and a sixteenth.
        #[test]
        fn results_are_within_two_roundings_and_a_sixteenth_of_exact(
            channels in prop::collection::vec(channel(), 1..6), at in 0.0..1.0f64, offset in -128..128
        ) {
            let largest = channels.iter().map(|channel| channel.multiplier).fold(0.0, f64::max);
            prop_assume!(channels.iter().all(|channel| channel.tolerates() >= largest));
            let plan = plan(&channels, offset).unwrap();
            for (channel, &factor) in channels.iter().zip(&plan.factors) {
                let sum = channel.low + ((channel.high - channel.low) as f64 * at) as i64;
                let exact = (sum as f64 * channel.multiplier + f64::from(offset)).clamp(-128.0, 127.0);
                let result = f64::from(plan.requant.apply(sum, factor));
                let first = 0.5 / exp2(plan.requant.shift - 14);
                prop_assert!((result - exact).abs() <= 0.5 + first + 1.2 / 16.0, "{result} for {exact}: {plan:?}");
            }
        }

        /// Channels of one octave round where TFLite rounds, so results differ only by the bits beyond the fifteenth.
        #[test]
        fn channels_of_one_octave_round_as_tflite_does(fraction in 0.5..1.0f64, octave in 0..18i32, at in -1.0..1.0f64) {
            let multiplier = fraction * f64::from(-octave).exp2();
            let reach = (128.0 / multiplier) as i64;
            let channel = Channel { multiplier, low: -reach, high: reach };
            let plan = plan(&[channel], 0).unwrap();
            // Where 15 bits hold the fraction, nothing is left to differ.
            let fraction = f64::from(plan.factors[0]) / 32768.0;
            let sum = (reach as f64 * at) as i64;
            let tie = (sum as f64 * fraction).fract().abs() == 0.5;
            prop_assume!(!tie);
            let twice = ((sum as f64 * fraction).round() * f64::from(-octave).exp2()).round().clamp(-128.0, 127.0);
            prop_assert_eq!(f64::from(plan.requant.apply(sum, plan.factors[0])), twice);
        }

        /// Multipliers above one, as a change of scale has them.
        #[test]
        fn no_result_is_lost_where_the_multiplier_is_large(log in -1.0..6.0f64, sum in -255..256i64, offset in -128..128) {
            let channel = Channel { multiplier: log.exp2(), low: -255, high: 255 };
            let plan = plan(&[channel], offset).unwrap();
            let exact = (sum as f64 * channel.multiplier + f64::from(offset)).clamp(-128.0, 127.0);
            let result = f64::from(plan.requant.apply(sum, plan.factors[0]));
            prop_assert!((result - exact).abs() <= 0.76, "{result} for {exact}: {plan:?}");
        }

        #[test]
        fn the_largest_value_below_a_limit_is_the_last_one(
            channel in channel(), offset in -128..128, high in -100..127
        ) {
            let requant = plan(&[channel], offset).unwrap().requant;
            let largest = requant.largest_below(high);
            prop_assert!(requant.unlimited(largest) <= high.into());
            prop_assert!(largest == i32::MAX || requant.unlimited(largest + 1) > high.into());
        }

        #[test]
        fn a_constant_channel_has_its_result(channel in channel(), offset in -128..128, result in -128..128) {
            let requant = plan(&[channel], offset).unwrap().requant;
            let (addend, factor) = requant.constant(result).unwrap();
            prop_assert_eq!(requant.apply(addend.into(), factor), result);
        }

        #[test]
        fn both_multipliers_of_a_pair_are_met_to_seventeen_bits(a in -9.0..4.0f64, b in -9.0..4.0f64) {
            let multipliers = [a.exp2(), b.exp2()];
            let plan = plan_pair(multipliers, 0).unwrap();
            let unit = f64::from(plan.requant.scale) / exp2(plan.requant.shift);
            let reached = [
                f64::from(plan.first) / exp2(plan.requant.bs_shift) * unit,
                f64::from(plan.second) / exp2(plan.second_shift) * unit,
            ];
            for (reached, multiplier) in reached.into_iter().zip(multipliers) {
                prop_assert!((reached / multiplier - 1.0).abs() < exp2(17).recip(), "{plan:?}");
            }
        }

        #[test]
        fn rounding_agrees_with_exact_arithmetic(value in any::<i32>(), shift in 0..31u32) {
            let exact = f64::from(value) / exp2(shift);
            prop_assert_eq!(half_away(value.into(), shift) as f64, exact.round());
            prop_assert_eq!(half_even(value.into(), shift) as f64, exact.round_ties_even());
        }
    }

    #[test]
    fn a_power_of_two_is_met_exactly() {
        let channel = Channel { multiplier: exp2(7).recip(), low: -1 << 20, high: 1 << 20 };
        let plan = plan(&[channel], 0).unwrap();
        let reached = f64::from(plan.factors[0]) * f64::from(plan.requant.scale)
            / exp2(plan.requant.bs_shift + plan.requant.shift);
        assert!((reached * exp2(7) - 1.0).abs() < exp2(25).recip(), "{plan:?}");
    }

    #[test]
    fn a_scale_that_is_not_finite_is_refused() {
        for multiplier in [0.0, f64::NAN, f64::INFINITY] {
            assert!(plan(&[Channel { multiplier, low: -1, high: 1 }], 0).is_err());
        }
    }

    #[test]
    fn a_channel_that_cannot_move_the_result_is_constant() {
        let channel = Channel { multiplier: 1e-10, low: -1_000_000, high: 1_000_000 };
        assert_eq!(channel.constant(-128, Limits::NONE), Some(-128));
        let channel = Channel { multiplier: 1e-6, low: -1_000_000, high: 1_000_000 };
        assert_eq!(channel.constant(-128, Limits::NONE), None);
    }
}
