//! The NPU of the RK3576: which operations there are, how its programs read and how its operands lie. Everything else is
//! refused by name.
//!
//! SOURCE: npu-spec-rk3576.

pub(crate) mod operands;
pub(crate) mod program;

use crate::chip::Operation;
use crate::emit::Kind;
use crate::matmul::Product;
use crate::ops::ElementType::{I8, U8};
use crate::pool::PoolKind;

/// Atoms between planes of extents `[h, w]`.
pub(crate) const fn plane_pitch([height, width]: [usize; 2], depthwise: bool) -> usize {
    let pixels = height * width;
    if depthwise { pixels.next_multiple_of(4) } else { pixels }
}

/// Whether the specification says how the chip does it.
pub(crate) const fn knows(operation: Operation) -> bool {
    matches!(
        operation,
        Operation::Product(Product::I8 | Product::F16)
            | Operation::Convolution(Kind::Direct | Kind::Depthwise, I8 | U8)
            | Operation::Pooling(PoolKind::Max | PoolKind::Mean | PoolKind::MeanInside, I8 | U8)
    )
}
