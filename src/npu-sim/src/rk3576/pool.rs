//! Pooling, which is the RK3588's but for pad values, planes and the reader's code.

use npu_regs::{PoolingMethod, Precision, Register, ppu, ppu_rdma as rdma, rk3576};

use crate::controller::Effect;
use crate::fault::{Result, agree, proven};
use crate::memory::Space;
use crate::ppu::{Element, Pool, check_strides, extents, window};
use crate::registers::RegisterFile;

/// Computes a task. `left`: the largest work that is allowed.
pub(super) fn run(registers: &RegisterFile, space: &Space, left: u64) -> Result<Effect> {
    decode(registers)?.run(space, left)
}

fn decode(registers: &RegisterFile) -> Result<Pool> {
    let mode = registers.get::<ppu::OperationModeCfg>()?;
    let method = mode.pooling_method;
    let plain = ppu::OperationModeCfg { flying_mode: true, pooling_method: method, ..Default::default() };
    proven(mode == plain && method != PoolingMethod::Min, "this mode of pooling")?;
    registers.unused::<ppu::MiscCtrl>()?;
    let format = registers.get::<ppu::DataFormat>()?;
    proven(
        !format.dpu_flyin && format.proc_precision == Precision::Int8,
        "pooling of other numbers than 8-bit integers",
    )?;
    let reader = registers.bits(rk3576::ppu_rdma::Format::INFO);
    agree("the format of the pooling reader and that of known programs", reader, rk3576::POOL_FORMAT)?;
    let (kernel, stride) = window(registers)?;
    let (input, output, channels) = extents(registers)?;
    let padding = registers.get::<ppu::PoolingPaddingCfg>()?;
    let pad = [padding.pad_top as usize, padding.pad_left as usize];
    let after = [padding.pad_bottom as usize, padding.pad_right as usize];
    let padded = pad.into_iter().chain(after).any(|cells| cells > 0);
    let destination_stride = check_strides(registers)?;
    let reader = [
        registers.get::<rdma::SrcLineStride>()?.src_line_stride,
        registers.get::<rdma::SrcSurfStride>()?.src_surf_stride,
    ];
    let planes = [input, output].map(|[rows, columns]| (rows * columns).next_multiple_of(4) as u64);
    agree("line stride and width of the pooled cube", reader[0], input[1] as u64)?;
    agree("surface stride and planes of the pooled cube", reader[1], planes[0])?;
    agree("surface stride and planes of the pooling's result", destination_stride, planes[1])?;
    Pool {
        element: Element::I8,
        method,
        input,
        output,
        planes: channels / Element::I8.lanes(),
        kernel,
        stride,
        pad,
        outside: outside(registers, method, padded)?,
        reciprocals: Element::I8.reciprocals(registers, method, kernel)?,
        source: registers.get::<rdma::SrcBaseAddr>()?.src_base_addr.into(),
        line_stride: reader[0].into(),
        surface_stride: reader[1].into(),
        destination: registers.get::<ppu::DstBaseAddr>()?.dst_base_addr.into(),
        destination_stride: destination_stride.into(),
    }
    .checked(channels, after)
}

/// What a cell outside holds. A maximum's four registers hold the same.
fn outside(registers: &RegisterFile, method: PoolingMethod, padded: bool) -> Result<i64> {
    use rk3576::ppu::{Pad1, Pad2, Pad3, Pad4};
    if !padded {
        return Ok(0);
    }
    proven(method == PoolingMethod::Max, "a mean with padding")?;
    let values = [Pad1::INFO, Pad2::INFO, Pad3::INFO, Pad4::INFO].map(|register| registers.bits(register));
    proven(values.iter().all(|value| *value == values[0]), "different pad values of a maximum")?;
    Element::integer_outside(values[0])
}
