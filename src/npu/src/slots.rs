//! Which logical channel lives in which physical channel of a tensor.
//!
//! One task has one output scale, and a channel's own multiplier has 16 bits. So channels whose scales differ much
//! belong into different tasks, and a task covers whole kernel groups: the channels of a tensor are permuted and
//! padded until every group can be served. Tensors that one operation reads and writes lane by lane share one map.

use std::ops::Range;

/// The logical channel of every physical channel, or none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slots {
    channel_of: Vec<Option<usize>>,
    slot_of: Vec<usize>,
    /// `(slot, channel)` of the slots in use, in slot order.
    used: Vec<(usize, usize)>,
}

impl Slots {
    /// The map whose slot `i` holds `channel_of[i]`.
    ///
    /// # Panics
    /// Where the channels are not exactly 0, 1, 2 … in some order.
    pub fn new(channel_of: Vec<Option<usize>>) -> Self {
        let used: Vec<_> =
            channel_of.iter().enumerate().filter_map(|(slot, channel)| Some((slot, (*channel)?))).collect();
        let mut slot_of = vec![usize::MAX; used.len()];
        for &(slot, channel) in &used {
            assert!(slot_of[channel] == usize::MAX, "channel {channel} has two slots");
            slot_of[channel] = slot;
        }
        Self { channel_of, slot_of, used }
    }

    /// Channels in their own order, padded to a multiple of `group`.
    pub fn identity(channels: usize, group: usize) -> Self {
        Self::new((0..channels.next_multiple_of(group)).map(|slot| (slot < channels).then_some(slot)).collect())
    }

    /// Physical channels.
    #[expect(clippy::len_without_is_empty, reason = "a tensor has a channel")]
    pub fn len(&self) -> usize {
        self.channel_of.len()
    }

    /// Logical channels.
    pub fn channels(&self) -> usize {
        self.slot_of.len()
    }

    /// The logical channel of a slot.
    pub fn channel(&self, slot: usize) -> Option<usize> {
        self.channel_of[slot]
    }

    /// The slot of a logical channel.
    pub fn slot(&self, channel: usize) -> usize {
        self.slot_of[channel]
    }

    /// `(slot, channel)` of the slots of `range` that are in use.
    pub fn used(&self, range: Range<usize>) -> &[(usize, usize)] {
        let start = self.used.partition_point(|&(slot, _)| slot < range.start);
        let end = self.used.partition_point(|&(slot, _)| slot < range.end);
        &self.used[start..end]
    }
}

/// What a layer asks of the channels that share a task: no channel's scale may be larger than what another tolerates.
#[derive(Clone, Debug)]
pub struct Demand {
    /// Real multiplier of each logical channel; 0 where the channel is constant.
    pub multiplier: Vec<f64>,
    /// Largest multiplier in its task that each logical channel tolerates; infinite where the channel is constant.
    pub tolerates: Vec<f64>,
}

impl Demand {
    /// Whether the logical channels can share a task.
    pub fn agrees(&self, channels: impl Iterator<Item = usize>) -> bool {
        let mut share = Share::default();
        channels.into_iter().for_each(|channel| share.join(self, channel));
        share.holds()
    }
}

/// The extremes of a set of channels.
#[derive(Clone, Copy, Debug)]
struct Share {
    largest: f64,
    tolerated: f64,
}

impl Default for Share {
    fn default() -> Self {
        Self { largest: 0.0, tolerated: f64::INFINITY }
    }
}

impl Share {
    fn join(&mut self, demand: &Demand, channel: usize) {
        self.largest = self.largest.max(demand.multiplier[channel]);
        self.tolerated = self.tolerated.min(demand.tolerates[channel]);
    }

    fn holds(&self) -> bool {
        self.largest <= self.tolerated
    }
}

/// A map in which the channels of every aligned group of `group` slots can share a task of every layer in `demands`.
///
/// Where all channels can share one task, they keep their order.
pub fn arrange(channels: usize, group: usize, demands: &[Demand]) -> Slots {
    let tight: Vec<&Demand> = demands.iter().filter(|demand| !demand.agrees(0..channels)).collect();
    if tight.is_empty() {
        return Slots::identity(channels, group);
    }
    let mut left: Vec<usize> = (0..channels).collect();
    let mut groups = Vec::new();
    while !left.is_empty() {
        groups.push(take_group(&mut left, group, &tight));
    }
    // Neighbours that can share a task should be neighbours.
    groups.sort_by(|a, b| largest(tight[0], a).total_cmp(&largest(tight[0], b)));
    let mut channel_of = Vec::with_capacity(groups.len() * group);
    for members in &groups {
        channel_of.extend(members.iter().copied().map(Some));
        channel_of.resize(channel_of.len().next_multiple_of(group), None);
    }
    Slots::new(channel_of)
}

/// Removes a group from `left`: the most demanding channel, and those nearest to it that can share its tasks.
fn take_group(left: &mut Vec<usize>, group: usize, demands: &[&Demand]) -> Vec<usize> {
    let most: Vec<f64> = demands.iter().map(|demand| largest(demand, left)).collect();
    let strain = |channel: usize| {
        demands.iter().zip(&most).map(|(demand, most)| demand.tolerates[channel] / most).fold(f64::INFINITY, f64::min)
    };
    let seed = left.iter().copied().min_by(|&a, &b| strain(a).total_cmp(&strain(b))).expect("a channel is left");
    left.sort_by(|&a, &b| distance(demands, seed, a).total_cmp(&distance(demands, seed, b)));
    let mut shares = vec![Share::default(); demands.len()];
    let mut members = Vec::with_capacity(group);
    left.retain(|&channel| {
        let mut joined = shares.clone();
        joined.iter_mut().zip(demands).for_each(|(share, demand)| share.join(demand, channel));
        let joins = members.len() < group && joined.iter().all(Share::holds);
        if joins {
            shares = joined;
            members.push(channel);
        }
        !joins
    });
    members.sort_unstable();
    members
}

fn largest(demand: &Demand, channels: &[usize]) -> f64 {
    channels.iter().map(|&channel| demand.multiplier[channel]).fold(0.0, f64::max)
}

/// How far apart two channels are, in octaves of the layer where they differ most. A constant channel is near to all.
fn distance(demands: &[&Demand], a: usize, b: usize) -> f64 {
    let octaves = |demand: &&Demand| match (demand.multiplier[a], demand.multiplier[b]) {
        (a, b) if a > 0.0 && b > 0.0 => (a / b).log2().abs(),
        _ => 0.0,
    };
    demands.iter().map(octaves).fold(0.0, f64::max)
}

/// Cuts `slots` into the fewest runs of whole groups whose channels can share a task, in order.
pub fn cut(slots: &Slots, group: usize, demand: &Demand) -> Vec<Range<usize>> {
    let mut runs: Vec<Range<usize>> = Vec::new();
    let mut share = Share::default();
    for first in (0..slots.len()).step_by(group) {
        let range = first..(first + group).min(slots.len());
        let mut joined = share;
        slots.used(range.clone()).iter().for_each(|&(_, channel)| joined.join(demand, channel));
        match runs.last_mut() {
            Some(run) if joined.holds() => {
                run.end = range.end;
                share = joined;
            }
            _ => {
                share = Share::default();
                slots.used(range.clone()).iter().for_each(|&(_, channel)| share.join(demand, channel));
                runs.push(range);
            }
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn demand(multiplier: Vec<f64>) -> Demand {
        let tolerates = multiplier.iter().map(|&m| if m == 0.0 { f64::INFINITY } else { 16.0 * m }).collect();
        Demand { multiplier, tolerates }
    }

    fn demands() -> impl Strategy<Value = Vec<Demand>> {
        (1..150usize, 1..4usize).prop_flat_map(|(channels, layers)| {
            let multiplier = prop_oneof![Just(0.0), (-12.0..0.0f64).prop_map(f64::exp2)];
            prop::collection::vec(prop::collection::vec(multiplier, channels).prop_map(demand), layers)
        })
    }

    proptest! {
        #[test]
        fn every_group_can_share_a_task_of_every_layer(demands in demands(), wide in any::<bool>()) {
            let group = if wide { 64 } else { 32 };
            let channels = demands[0].multiplier.len();
            let slots = arrange(channels, group, &demands);
            prop_assert_eq!(slots.channels(), channels);
            prop_assert_eq!(slots.len() % group, 0);
            for demand in &demands {
                for run in cut(&slots, group, demand) {
                    prop_assert!(demand.agrees(slots.used(run).iter().map(|&(_, channel)| channel)));
                }
            }
        }
    }

    #[test]
    fn channels_that_agree_keep_their_order() {
        let slots = arrange(40, 32, &[demand(vec![0.5; 40])]);
        assert_eq!(slots, Slots::identity(40, 32));
        let runs = cut(&slots, 32, &demand(vec![0.5; 40]));
        assert!(runs.len() == 1 && runs[0] == (0..64), "{runs:?}");
    }

    #[test]
    fn one_layer_needs_no_more_groups_than_scale_classes() {
        let multiplier = (0..64).map(|i| if i % 2 == 0 { 1.0 } else { 0.001 }).collect();
        let slots = arrange(64, 32, &[demand(multiplier)]);
        assert_eq!(slots.len(), 64);
    }

    #[test]
    fn a_lone_outlier_costs_one_group() {
        let mut multiplier = vec![1.0; 32];
        multiplier[7] = 1e-4;
        assert_eq!(arrange(32, 32, &[demand(multiplier)]).len(), 64);
    }
}
