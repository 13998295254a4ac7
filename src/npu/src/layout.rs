//! Memory layouts, as pure functions from host order to the NPU's order and back.
//!
//! A *feature cube* is a list of planes; a plane is a list of pixels in row order; a pixel of a plane is one *atom* of 16
//! bytes with the elements of consecutive slots. A *slot* is a physical channel; a [`Slots`] map says which logical channel
//! lives there. Planes start `pitch` atoms apart.
//!
//! ```text
//! cube:      [plane][pixel < pitch][16 bytes]
//! direct:    [kernel group][input group][kh][kw][kernel][input slot]
//! depthwise: [group][kh][kw][slot]
//! operands:  [slot / 8][A: i32 × 8][B: i16 × 8][C: i16 × 8]
//! ```
//!
//! SOURCE: npu-spec 3.1, 3.2, 3.4.

use crate::ops::ElementType;
use crate::slots::Slots;

/// Bytes of an atom, the unit of every address that the hardware computes.
pub const ATOM: usize = 16;
/// Pixels that are copied together: what they touch stays in the near caches from plane to plane, and they are enough to make
/// what begins with each plane cheap.
const BLOCK: usize = 256;
/// Input slots of one group of a direct convolution's weights.
const INPUT_GROUP: usize = 32;
/// Slots of one group of operands.
const OPERAND_GROUP: usize = 8;
/// Bytes of one group of operands.
const OPERAND_GROUP_BYTES: usize = 64;

/// Where the elements of a tensor are in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cube {
    /// `[h, w]`.
    pub extents: [usize; 2],
    /// Atoms from one plane to the next.
    pub pitch: usize,
    /// Logical channel of every slot.
    pub slots: Slots,
    /// Element type.
    pub element: ElementType,
}

impl Cube {
    /// A cube whose planes are far enough apart for every reader.
    pub fn new(extents: [usize; 2], slots: Slots, element: ElementType) -> Self {
        Self { extents, pitch: crate::quirks::plane_pitch(extents), slots, element }
    }

    /// Slots of one atom.
    pub fn lanes(&self) -> usize {
        ATOM / self.element.bytes()
    }

    /// Planes.
    pub fn planes(&self) -> usize {
        self.slots.len().div_ceil(self.lanes())
    }

    /// Pixels of a plane.
    pub fn pixels(&self) -> usize {
        self.extents[0] * self.extents[1]
    }

    /// Bytes of all planes.
    pub fn bytes(&self) -> usize {
        self.planes() * self.pitch * ATOM
    }

    /// Offset in bytes of an atom.
    pub fn offset(&self, plane: usize, pixel: usize) -> usize {
        (plane * self.pitch + pixel) * ATOM
    }

    /// Bytes of the tensor in host order.
    pub fn host_bytes(&self) -> usize {
        self.pixels() * self.slots.channels() * self.element.bytes()
    }

    /// Copies `host`, `[h, w, c]` in NHWC, into the cube. Empty slots of a plane that has others may become zero.
    ///
    /// # Panics
    /// Where a slice has another size than [`Cube::host_bytes`] and [`Cube::bytes`] say.
    pub fn pack(&self, host: &[u8], cube: &mut [u8]) {
        assert_eq!(host.len(), self.host_bytes(), "host tensor");
        let pixel_bytes = self.slots.channels() * self.element.bytes();
        for (block, host) in host.chunks(BLOCK * pixel_bytes).enumerate() {
            for plane in 0..self.planes() {
                let atoms = &mut cube[self.offset(plane, block * BLOCK)..][..host.len() / pixel_bytes * ATOM];
                self.pack_block(plane, host, atoms.as_chunks_mut().0);
            }
        }
    }

    fn pack_block(&self, plane: usize, host: &[u8], atoms: &mut [[u8; ATOM]]) {
        let (size, flip) = (self.element.bytes(), self.flip());
        let pixel_bytes = self.slots.channels() * size;
        let lanes = self.slots.used(plane * self.lanes()..(plane + 1) * self.lanes());
        let pixels = atoms.iter_mut().zip(host.chunks_exact(pixel_bytes));
        match self.run(lanes) {
            Some((0, from)) if from.len() == 3 => widen::<3>(host, pixel_bytes, from.start, flip, atoms),
            Some((0, from)) if from.len() == 6 => widen::<6>(host, pixel_bytes, from.start, flip, atoms),
            Some((to, from)) => match from.len() {
                16 => put::<16>(pixels, to, from.start, flip),
                8 => put::<8>(pixels, to, from.start, flip),
                4 => put::<4>(pixels, to, from.start, flip),
                _ => pixels.for_each(|(atom, pixel)| {
                    let bytes = atom[to..].iter_mut().zip(&pixel[from.clone()]);
                    bytes.for_each(|(to, from)| *to = from ^ flip);
                }),
            },
            None if lanes.is_empty() => {}
            None => pixels.for_each(|(atom, pixel)| {
                for (at, &(lane, channel)) in lanes.iter().flat_map(|lane| (0..size).map(move |byte| (byte, lane))) {
                    atom[lane % self.lanes() * size + at] = pixel[channel * size + at] ^ flip;
                }
            }),
        }
    }

    /// Where in the atom neighbouring channels that are neighbours there begin, and their bytes of the pixel.
    fn run(&self, lanes: &[(usize, usize)]) -> Option<(usize, std::ops::Range<usize>)> {
        let &(slot, channel) = lanes.first()?;
        let size = self.element.bytes();
        let neighbours = lanes.iter().enumerate().all(|(i, lane)| *lane == (slot + i, channel + i));
        neighbours.then(|| (slot % self.lanes() * size, channel * size..(channel + lanes.len()) * size))
    }

    /// Copies the cube into `host`, `[h, w, c]` in NHWC.
    ///
    /// # Panics
    /// Where a slice has another size than [`Cube::host_bytes`] and [`Cube::bytes`] say.
    pub fn unpack(&self, cube: &[u8], host: &mut [u8]) {
        assert_eq!(host.len(), self.host_bytes(), "host tensor");
        let pixel_bytes = self.slots.channels() * self.element.bytes();
        for (block, host) in host.chunks_mut(BLOCK * pixel_bytes).enumerate() {
            for plane in 0..self.planes() {
                let atoms = &cube[self.offset(plane, block * BLOCK)..][..host.len() / pixel_bytes * ATOM];
                self.unpack_block(plane, atoms.as_chunks().0, host.chunks_exact_mut(pixel_bytes));
            }
        }
    }

    fn unpack_block<'a>(&self, plane: usize, atoms: &'a [[u8; ATOM]], host: impl Iterator<Item = &'a mut [u8]>) {
        let (size, flip) = (self.element.bytes(), self.flip());
        let lanes = self.slots.used(plane * self.lanes()..(plane + 1) * self.lanes());
        let pixels = atoms.iter().zip(host);
        match self.run(lanes) {
            Some((from, to)) => match to.len() {
                16 => take::<16>(pixels, from, to.start, flip),
                8 => take::<8>(pixels, from, to.start, flip),
                6 => take::<6>(pixels, from, to.start, flip),
                4 => take::<4>(pixels, from, to.start, flip),
                3 => take::<3>(pixels, from, to.start, flip),
                _ => pixels.for_each(|(atom, pixel)| {
                    let bytes = pixel[to.clone()].iter_mut().zip(&atom[from..]);
                    bytes.for_each(|(to, from)| *to = from ^ flip);
                }),
            },
            None if lanes.is_empty() => {}
            None => pixels.for_each(|(atom, pixel)| {
                for (at, &(lane, channel)) in lanes.iter().flat_map(|lane| (0..size).map(move |byte| (byte, lane))) {
                    pixel[channel * size + at] = atom[lane % self.lanes() * size + at] ^ flip;
                }
            }),
        }
    }

    /// Unsigned bytes lie in memory less 128, which is one flipped bit.
    fn flip(&self) -> u8 {
        match self.element {
            ElementType::U8 => 0x80,
            ElementType::I8 | ElementType::F16 | ElementType::I32 | ElementType::F32 => 0,
        }
    }
}

/// Copies a run of `N` bytes of each pixel into its atom. Whole atoms and what pictures have are worth a loop of their own:
/// arrays of a known length are what a compiler makes whole moves of.
fn put<'a, const N: usize>(
    pixels: impl Iterator<Item = (&'a mut [u8; ATOM], &'a [u8])>,
    to: usize,
    from: usize,
    flip: u8,
) {
    for (atom, pixel) in pixels {
        // PANIC: a run lies in its pixel and in its atom.
        let run: &[u8; N] = pixel[from..].first_chunk().expect("a run of the pixel");
        atom[to..][..N].copy_from_slice(&run.map(|byte| byte ^ flip));
    }
}

/// Copies a run of `N` bytes of each pixel into the beginning of its atom, and makes the rest zero: what pictures of three
/// channels have, and no move is as long as. A word is read, the run and what follows it, and all of the atom is written.
fn widen<const N: usize>(host: &[u8], pixel_bytes: usize, from: usize, flip: u8, atoms: &mut [[u8; ATOM]]) {
    let mask = (1 << (8 * N)) - 1;
    let flip = u64::from_le_bytes([flip; 8]) & mask;
    for (pixel, atom) in atoms.iter_mut().enumerate() {
        let rest = &host[pixel * pixel_bytes + from..];
        let word = rest.first_chunk().map_or_else(|| last::<N>(rest), |word| u64::from_le_bytes(*word) & mask);
        *atom = u128::from(word ^ flip).to_le_bytes();
    }
}

/// A run that less than a word is left of.
fn last<const N: usize>(rest: &[u8]) -> u64 {
    let mut word = [0; 8];
    word[..N].copy_from_slice(&rest[..N]);
    u64::from_le_bytes(word)
}

/// Copies a run of `N` bytes of each atom into its pixel.
fn take<'a, const N: usize>(
    pixels: impl Iterator<Item = (&'a [u8; ATOM], &'a mut [u8])>,
    from: usize,
    to: usize,
    flip: u8,
) {
    for (atom, pixel) in pixels {
        // PANIC: a run lies in its atom and in its pixel.
        let run: &[u8; N] = atom[from..].first_chunk().expect("a run of the atom");
        pixel[to..][..N].copy_from_slice(&run.map(|byte| byte ^ flip));
    }
}

/// Extents of a weight cube: physical kernels and input slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WeightShape {
    /// Kernels, padding included.
    pub kernels: usize,
    /// Input slots, padding included: a multiple of 16.
    pub inputs: usize,
    /// Kernel extents `[h, w]`.
    pub extents: [usize; 2],
}

impl WeightShape {
    /// Taps of a kernel.
    pub fn taps(&self) -> usize {
        self.extents[0] * self.extents[1]
    }
}

/// Kernels that a direct convolution works on together. SOURCE: npu-spec 3.2.
pub const fn kernel_group(element: ElementType) -> usize {
    if element.is_integer() { 32 } else { 16 }
}

/// Slots that a depthwise convolution works on together. SOURCE: npu-spec 3.2.
pub const fn depthwise_group(element: ElementType) -> usize {
    if element.is_integer() { 64 } else { 32 }
}

/// Weights of a direct convolution; `weight(kernel, tap, input)` gives the element of physical indices.
///
/// A last input group of 16 is 16 wide, a last kernel group that is not full is dense.
pub fn pack_direct<const SIZE: usize>(
    shape: &WeightShape,
    group: usize,
    mut weight: impl FnMut(usize, usize, usize) -> [u8; SIZE],
) -> Vec<u8> {
    let mut cube = Vec::with_capacity(shape.kernels * shape.taps() * shape.inputs * SIZE);
    for first in (0..shape.kernels).step_by(group) {
        for first_input in (0..shape.inputs).step_by(INPUT_GROUP) {
            for tap in 0..shape.taps() {
                for kernel in first..(first + group).min(shape.kernels) {
                    for input in first_input..(first_input + INPUT_GROUP).min(shape.inputs) {
                        cube.extend(weight(kernel, tap, input));
                    }
                }
            }
        }
    }
    cube
}

/// Weights of a depthwise convolution; `weight(slot, tap)` gives the element of physical indices.
pub fn pack_depthwise<const SIZE: usize>(
    shape: &WeightShape,
    group: usize,
    mut weight: impl FnMut(usize, usize) -> [u8; SIZE],
) -> Vec<u8> {
    let mut cube = Vec::with_capacity(shape.taps() * shape.inputs * SIZE);
    for first in (0..shape.inputs).step_by(group) {
        for tap in 0..shape.taps() {
            for slot in first..(first + group).min(shape.inputs) {
                cube.extend(weight(slot, tap));
            }
        }
    }
    cube
}

/// What the BS stage reads for one slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Operand {
    /// Operand A: added to the accumulator.
    pub addend: i32,
    /// Operand B: weight zero-point compensation.
    pub compensation: i16,
    /// Operand C: multiplier.
    pub multiplier: i16,
}

/// Operands of the BS stage, in groups of eight slots.
///
/// # Panics
/// Where `operands` is not a multiple of eight.
pub fn pack_operands(operands: &[Operand]) -> Vec<u8> {
    assert!(operands.len().is_multiple_of(OPERAND_GROUP), "operands come in groups of eight");
    let mut bytes = Vec::with_capacity(operands.len() / OPERAND_GROUP * OPERAND_GROUP_BYTES);
    for group in operands.chunks_exact(OPERAND_GROUP) {
        bytes.extend(group.iter().flat_map(|operand| operand.addend.to_le_bytes()));
        bytes.extend(group.iter().flat_map(|operand| operand.compensation.to_le_bytes()));
        bytes.extend(group.iter().flat_map(|operand| operand.multiplier.to_le_bytes()));
    }
    bytes
}

/// Bytes of the operands of `slots` slots.
pub const fn operand_bytes(slots: usize) -> usize {
    slots / OPERAND_GROUP * OPERAND_GROUP_BYTES
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn cube(element: ElementType) -> impl Strategy<Value = Cube> {
        (1..6usize, 1..6usize, 1..70usize, any::<u64>()).prop_map(move |(h, w, channels, seed)| {
            let slots = channels.next_multiple_of(32) + 32;
            let mut map = vec![None; slots];
            let mut at = seed;
            for channel in 0..channels {
                at = at.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let mut slot = (at >> 33) as usize % slots;
                while map[slot].is_some() {
                    slot = (slot + 1) % slots;
                }
                map[slot] = Some(channel);
            }
            Cube::new([h, w], Slots::new(map), element)
        })
    }

    fn check(cube: &Cube) {
        let host: Vec<u8> = (0..cube.host_bytes()).map(|i| (i * 31 + 7) as u8).collect();
        let mut device = vec![0; cube.bytes()];
        cube.pack(&host, &mut device);
        let mut back = vec![0; host.len()];
        cube.unpack(&device, &mut back);
        assert_eq!(back, host);
    }

    proptest! {
        #[test]
        fn unpacking_undoes_packing(i8 in cube(ElementType::I8), u8 in cube(ElementType::U8), f16 in cube(ElementType::F16)) {
            check(&i8);
            check(&u8);
            check(&f16);
        }

        /// The index formula of the specification, written down apart from the loops above.
        #[test]
        fn an_element_lies_where_the_index_formula_says(cube in cube(ElementType::I8), pick in any::<prop::sample::Index>()) {
            let channels = cube.slots.channels();
            let at = pick.index(cube.host_bytes());
            let mut host = vec![0; cube.host_bytes()];
            host[at] = 9;
            let mut device = vec![0; cube.bytes()];
            cube.pack(&host, &mut device);
            let (pixel, channel) = (at / channels, at % channels);
            let slot = cube.slots.slot(channel);
            let expected = (slot / 16 * cube.pitch + pixel) * 16 + slot % 16;
            prop_assert_eq!(device.iter().position(|&byte| byte == 9), Some(expected));
        }

        /// Channels in their own order, as pictures have them, of every number that an atom holds and some more.
        #[test]
        fn atoms_of_few_channels_are_whole(channels in 1..20usize, w in 1..150usize, seed in any::<u8>()) {
            for element in [ElementType::I8, ElementType::U8, ElementType::F16] {
                let cube = Cube::new([3, w], Slots::identity(channels, 32), element);
                let host: Vec<u8> = (0..cube.host_bytes()).map(|i| (i as u8).wrapping_mul(29) ^ seed).collect();
                let mut device = vec![0; cube.bytes()];
                cube.pack(&host, &mut device);
                let (size, flip) = (element.bytes(), cube.flip());
                let mut expected = vec![0; cube.bytes()];
                for (at, byte) in host.iter().enumerate() {
                    let (pixel, channel) = (at / size / channels, at / size % channels);
                    let place = cube.offset(channel / cube.lanes(), pixel);
                    expected[place + channel % cube.lanes() * size + at % size] = byte ^ flip;
                }
                prop_assert!(device == expected, "{element:?}");
                let mut back = vec![0; host.len()];
                cube.unpack(&device, &mut back);
                prop_assert_eq!(&back, &host);
            }
        }

        #[test]
        fn a_direct_weight_lies_where_the_index_formula_says(
            kernels in 1..80usize, inputs in 1..7usize, kh in 1..4usize, kw in 1..4usize, pick in any::<prop::sample::Index>()
        ) {
            let shape = WeightShape { kernels, inputs: inputs * 16, extents: [kh, kw] };
            let total = kernels * shape.inputs * shape.taps();
            let at = pick.index(total);
            let (oc, tap, ic) = (at / shape.inputs / shape.taps(), at / shape.inputs % shape.taps(), at % shape.inputs);
            let cube = pack_direct(&shape, 32, |kernel, t, input| [u8::from((kernel, t, input) == (oc, tap, ic))]);
            prop_assert_eq!(cube.len(), total);
            let in_group = (kernels - oc / 32 * 32).min(32);
            let ic_width = (shape.inputs - ic / 32 * 32).min(32);
            let expected = oc / 32 * 32 * shape.inputs * shape.taps()
                + ic / 32 * 32 * shape.taps() * in_group
                + tap * in_group * ic_width
                + oc % 32 * ic_width
                + ic % 32;
            prop_assert_eq!(cube.iter().position(|&byte| byte == 1), Some(expected));
        }
    }

    #[test]
    fn the_worked_matmul_weight_of_the_specification_is_at_3112() {
        let shape = WeightShape { kernels: 64, inputs: 64, extents: [1, 1] };
        let cube = pack_direct(&shape, 32, |kernel, _, input| [u8::from((kernel, input) == (33, 40))]);
        assert_eq!(cube.iter().position(|&byte| byte == 1), Some(3112));
    }

    #[test]
    fn depthwise_groups_are_tap_major() {
        let shape = WeightShape { kernels: 1, inputs: 128, extents: [3, 3] };
        let cube = pack_depthwise(&shape, 64, |slot, tap| [u8::from((slot, tap) == (70, 4))]);
        assert_eq!(cube.len(), 9 * 128);
        assert_eq!(cube.iter().position(|&byte| byte == 1), Some(64 * 9 + 4 * 64 + 6));
    }

    #[test]
    fn operands_are_groups_of_a_b_and_c() {
        let operands: Vec<Operand> = (0..16)
            .map(|i| Operand { addend: i + 1, compensation: -3, multiplier: i16::try_from(i * 2).unwrap() })
            .collect();
        let bytes = pack_operands(&operands);
        assert_eq!(bytes.len(), operand_bytes(16));
        assert_eq!(bytes[64 + 4..64 + 8], 10_i32.to_le_bytes());
        assert_eq!(bytes[64 + 32..64 + 34], (-3_i16).to_le_bytes());
        assert_eq!(bytes[64 + 48 + 2..64 + 48 + 4], 18_i16.to_le_bytes());
    }
}
