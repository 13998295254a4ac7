//! Two arrays of integers become one, element by element, in the post-processor alone.
//!
//! Sums, differences and products saturate at the element's type. SOURCE: npu-spec 4.10 \[HW\]: all precisions name the same
//! integer type; 32-bit operands bypass the converter, and their second factor has 16 bits (Q21).

use npu_regs::{AluAlgo, BlockMask, ElementSize, EwDataMode, EwOpType, FieldError, Precision, Program, dpu, dpu_rdma};

use crate::chip::Operation;
use crate::context::{Context, Worker, fill};
use crate::error::{RunError, RunReport, Unsupported};
use crate::job::{Started, Written};
use crate::layout::ATOM;
use crate::options::Options;

/// Elements of a task. QUIRK(Q18): the end of an operation 8191 atoms wide is wrong. SOURCE: npu-spec 4.10.
const MOST_ELEMENTS: usize = 32 * 1024;
/// Atoms of a task, for elements of which an atom holds few.
const MOST_ATOMS: usize = 4096;
/// Longest burst of every reader and writer.
const BURST: u32 = 15;

/// What becomes of two elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ElementOp {
    /// Their sum.
    Add,
    /// The first less the second.
    Subtract,
    /// Their product.
    Multiply,
    /// The larger.
    Max,
    /// The smaller.
    Min,
}

/// An integer that the post-processor works on: `i8`, `i16` or `i32`.
pub trait ElementNumber: sealed::Number + Copy + Default + std::fmt::Debug + PartialEq {}

mod sealed {
    use npu_regs::{ElementSize, Precision};

    use super::{ATOM, ElementOp};

    /// What only this crate needs to know of a number.
    pub trait Number: Sized {
        const PRECISION: Precision;
        const SIZE: ElementSize;
        /// Whether the hardware takes the value as a second operand.
        fn fits(self, _op: ElementOp) -> bool {
            true
        }
        fn encode(values: &[Self], atom: &mut [u8; ATOM]);
        fn decode(atom: &[u8; ATOM], values: &mut [Self]);
    }
}

macro_rules! number {
    ($number:ty, $precision:ident, $size:ident $(, $operand:item)?) => {
        impl ElementNumber for $number {}

        impl sealed::Number for $number {
            const PRECISION: Precision = Precision::$precision;
            const SIZE: ElementSize = ElementSize::$size;
            $($operand)?

            fn encode(values: &[Self], atom: &mut [u8; ATOM]) {
                atom.as_chunks_mut().0.iter_mut().zip(values).for_each(|(bytes, value)| *bytes = value.to_le_bytes());
            }

            fn decode(atom: &[u8; ATOM], values: &mut [Self]) {
                let bytes = atom.as_chunks().0.iter();
                values.iter_mut().zip(bytes).for_each(|(value, bytes)| *value = Self::from_le_bytes(*bytes));
            }
        }
    };
}

number!(i8, Int8, Bits8);
number!(i16, Int16, Bits16);
number!(
    i32,
    Int32,
    Bits32,
    // QUIRK(Q21): of a second factor 16 bits are seen.
    fn fits(self, op: ElementOp) -> bool {
        op != ElementOp::Multiply || i16::try_from(self).is_ok()
    }
);

impl Context {
    /// `out[i]` becomes `a[i]` op `b[i]`, saturated at the type.
    ///
    /// ```
    /// # use npu::{Context, ElementOp, RunError};
    /// # fn sum(context: &mut Context) -> Result<(), RunError> {
    /// let mut sums = [0; 3];
    /// context.elementwise(ElementOp::Add, &[100_i8, -100, 5], &[100, -100, 6], &mut sums)?;
    /// assert_eq!(sums, [127, -128, 11]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`RunError::Size`] for slices of other lengths, [`RunError::Value`] for a second factor beyond 16 bits; otherwise as
    /// [`Context::matmul`]. `out` is then all zeros.
    pub fn elementwise<T: ElementNumber>(
        &mut self,
        op: ElementOp,
        a: &[T],
        b: &[T],
        out: &mut [T],
    ) -> Result<RunReport, RunError> {
        let known = self.chip.check(Operation::Elementwise).map_err(RunError::from);
        known.and_then(|()| check(op, a, b, out)).inspect_err(|_| out.fill(T::default()))?;
        let outcome = self.run_elements(op, a, b, out);
        if outcome.is_err() {
            // An unverified result is never handed out.
            out.fill(T::default());
        }
        self.record("elementwise", outcome)
    }

    /// All workers compute at once; this thread packs and unpacks for one after the other.
    fn run_elements<T: ElementNumber>(
        &mut self,
        op: ElementOp,
        a: &[T],
        b: &[T],
        out: &mut [T],
    ) -> Result<RunReport, RunError> {
        let Self { options, workers, chip, .. } = self;
        let lanes = ATOM / size_of::<T>();
        let each = a.len().div_ceil(workers.len()).next_multiple_of(lanes);
        let mut started = Vec::with_capacity(workers.len());
        for ((worker, a), b) in workers.iter_mut().zip(a.chunks(each)).zip(b.chunks(each)) {
            let part = worker.start_elements(op, a, b, options)?;
            started.push((worker, part));
        }
        let mut total = RunReport::default();
        for ((worker, part), out) in started.into_iter().zip(out.chunks_mut(each)) {
            let atoms = out.len().div_ceil(lanes);
            let written = Written { task: 0, plane: 0, pixels: atoms, bytes: 0..atoms * ATOM };
            let report = worker.finish(&part, std::iter::once(written), chip, |memory| {
                let (atoms, _) = memory.as_chunks::<ATOM>();
                out.chunks_mut(lanes).zip(atoms).for_each(|(values, atom)| T::decode(atom, values));
            })?;
            total.add(report);
        }
        Ok(total)
    }
}

fn check<T: ElementNumber>(op: ElementOp, a: &[T], b: &[T], out: &[T]) -> Result<(), RunError> {
    if a.is_empty() {
        return Err(Unsupported::new("no elements").into());
    }
    for (what, found) in [("second operand", size_of_val(b)), ("result", size_of_val(out))] {
        if found != size_of_val(a) {
            return Err(RunError::Size { what, index: 0, found, expected: size_of_val(a) });
        }
    }
    match b.iter().position(|value| !value.fits(op)) {
        Some(index) => Err(RunError::Value { what: "second operand", index }),
        None => Ok(()),
    }
}

impl Worker {
    fn start_elements<T: ElementNumber>(
        &mut self,
        op: ElementOp,
        a: &[T],
        b: &[T],
        options: &Options,
    ) -> Result<Started, RunError> {
        let lanes = ATOM / size_of::<T>();
        let atoms = a.len().div_ceil(lanes);
        let mut started = self.begin(atoms * ATOM, options)?;
        self.features.at_least(&self.device, "operands", 2 * atoms * ATOM)?;
        fill(self.features.get(), "pack the operands", |memory| {
            let (memory, _) = memory.as_chunks_mut::<ATOM>();
            let (first, second) = memory.split_at_mut(atoms);
            for (operand, memory) in [(a, first), (b, second)] {
                for (values, atom) in operand.chunks(lanes).zip(memory) {
                    *atom = [0; ATOM];
                    T::encode(values, atom);
                }
            }
        })?;
        let (source, destination) = (self.features.get().dma(), self.results[0].get().dma());
        // CAST: the buffers were made, so what lies in them has 32 bits.
        let at = |base: u32, atom: usize| base.wrapping_add((atom * ATOM) as u32);
        let most = MOST_ATOMS.min(MOST_ELEMENTS / lanes);
        let mut programs = Vec::with_capacity(atoms.div_ceil(most));
        for first in (0..atoms).step_by(most) {
            let task = ElementTask {
                op,
                precision: T::PRECISION,
                size: T::SIZE,
                // CAST: at most 4096; at most 16.
                columns: (atoms - first).min(most) as u32,
                lanes: lanes as u32,
                operands: [at(source, first), at(source, atoms + first)],
                destination: at(destination, first),
            };
            programs.push(task.program().map_err(|error| Unsupported::new(format!("element-wise: {error}")))?);
        }
        self.submit(&mut started, &mut programs, false, options)?;
        Ok(started)
    }
}

/// One task: a row of atoms.
struct ElementTask {
    op: ElementOp,
    precision: Precision,
    size: ElementSize,
    columns: u32,
    lanes: u32,
    operands: [u32; 2],
    destination: u32,
}

impl ElementTask {
    /// The program: every register that the datapath looks at. SOURCE: npu-spec 4.10.
    fn program(&self) -> Result<Program, FieldError> {
        let mut program = Program::new();
        let (pointer_pp_mode, executer_pp_en, pointer_pp_en) = (true, true, true);
        program.push(dpu::SPointer { pointer_pp_mode, executer_pp_en, pointer_pp_en, ..Default::default() })?;
        program.push(dpu_rdma::SPointer { pointer_pp_mode, executer_pp_en, pointer_pp_en, ..Default::default() })?;
        self.writer(&mut program)?;
        self.stages(&mut program)?;
        self.readers(&mut program)?;
        program.finish(BlockMask::FLYING);
        Ok(program)
    }

    /// A single plane, so the strides are inert.
    fn stride(&self) -> u32 {
        2 * self.columns
    }

    fn writer(&self, program: &mut Program) -> Result<(), FieldError> {
        let (last, precision) = (self.lanes - 1, self.precision);
        program.push(dpu::FeatureModeCfg {
            burst_len: BURST,
            // To memory. SOURCE: npu-spec 1.8.
            output_mode: 2,
            flying_mode: true,
            ..Default::default()
        })?;
        program.push(dpu::DataFormat {
            out_precision: precision,
            in_precision: precision,
            proc_precision: precision,
            ..Default::default()
        })?;
        program.push(dpu::OffsetPend::default())?;
        program.push(dpu::DstBaseAddr { dst_base_addr: self.destination })?;
        program.push(dpu::DstSurfStride { dst_surf_stride: self.stride() })?;
        program.push(dpu::DataCubeWidth { width: self.columns - 1 })?;
        program.push(dpu::DataCubeHeight::default())?;
        program.push(dpu::DataCubeNotchAddr::default())?;
        program.push(dpu::DataCubeChannel { orig_channel: last, channel: last })?;
        program.push(dpu::BsOwCfg { od_bypass: true, ..Default::default() })?;
        program.push(dpu::BsOwOp::default())?;
        program.push(dpu::WdmaSize0 { channel_wdma: last, ..Default::default() })?;
        program.push(dpu::WdmaSize1 { height_wdma: 0, width_wdma: self.columns - 1 })?;
        program.push(dpu::SurfaceAdd { surf_add: self.stride() })?;
        program.push(dpu::Unnamed40C4::default())
    }

    fn stages(&self, program: &mut Program) -> Result<(), FieldError> {
        program.push(dpu::BsCfg {
            bs_relu_bypass: true,
            bs_mul_bypass: true,
            bs_alu_bypass: true,
            bs_bypass: true,
            ..Default::default()
        })?;
        program.push(dpu::BnCfg {
            bn_relu_bypass: true,
            bn_mul_bypass: true,
            bn_alu_bypass: true,
            bn_bypass: true,
            ..Default::default()
        })?;
        let (ew_op_type, ew_alu_algo) = match self.op {
            ElementOp::Add => (EwOpType::Alu, AluAlgo::Add),
            ElementOp::Subtract => (EwOpType::Alu, AluAlgo::Minus),
            ElementOp::Max => (EwOpType::Alu, AluAlgo::Max),
            ElementOp::Min => (EwOpType::Alu, AluAlgo::Min),
            ElementOp::Multiply => (EwOpType::Mul, AluAlgo::default()),
        };
        program.push(dpu::EwCfg {
            ew_data_mode: EwDataMode::PerPixel,
            edata_size: self.size,
            ew_alu_algo,
            ew_relu_bypass: true,
            ew_op_cvt_bypass: ew_op_type == EwOpType::Mul || self.precision == Precision::Int32,
            ew_lut_bypass: true,
            ew_op_src: true,
            ew_op_type,
            ..Default::default()
        })?;
        program.push(dpu::EwCvtOffsetValue::default())?;
        program.push(dpu::EwCvtScaleValue { ew_op_cvt_scale: 1, ..Default::default() })?;
        program.push(dpu::OutCvtOffset::default())?;
        program.push(dpu::OutCvtScale { fp32tofp16_en: false, out_cvt_scale: 1 })?;
        program.push(dpu::OutCvtShift::default())
    }

    fn readers(&self, program: &mut Program) -> Result<(), FieldError> {
        let [first, second] = self.operands;
        program.push(dpu_rdma::DataCubeWidth { width: self.columns - 1 })?;
        program.push(dpu_rdma::DataCubeHeight::default())?;
        program.push(dpu_rdma::DataCubeChannel { channel: self.lanes - 1 })?;
        program.push(dpu_rdma::SrcBaseAddr { src_base_addr: first })?;
        program.push(dpu_rdma::Bcfg::default())?;
        program.push(dpu_rdma::Ncfg::default())?;
        program.push(dpu_rdma::Ecfg {
            erdma_data_mode: EwDataMode::PerPixel,
            erdma_data_size: self.size,
            ..Default::default()
        })?;
        program.push(dpu_rdma::EwBaseAddr { ew_base_addr: second })?;
        program.push(dpu_rdma::EwSurfStride { ew_surf_stride: self.stride() })?;
        program.push(dpu_rdma::FeatureModeCfg {
            in_precision: self.precision,
            burst_len: BURST,
            // QUIRK(Q20): the operands are read apart; an odd code hangs.
            comb_use: 4,
            proc_precision: self.precision,
            flying_mode: true,
            ..Default::default()
        })?;
        program.push(dpu_rdma::SrcDmaCfg::default())?;
        program.push(dpu_rdma::SurfNotch { surf_notch_addr: self.stride() })?;
        program.push(dpu_rdma::PadCfg::default())?;
        program.push(dpu_rdma::Weight { e_weight: 1, n_weight: 1, b_weight: 1, m_weight: 1 })?;
        program.push(dpu_rdma::EwSurfNotch { ew_surf_notch: self.stride() })
    }
}
