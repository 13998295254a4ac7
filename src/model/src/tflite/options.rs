//! Options of a file's operators: a union of tables, one kind for each operator.

use super::description::{Options, WindowOptions};
use super::wire::Table;

/// Reads the options of an operator by its name. Operators without options, or with options that nothing here needs,
/// have [`Options::None`].
pub(super) fn read(name: &str, operator: &Table<'_>) -> Result<Options, String> {
    let union = Union { kind: operator.scalar(3, 0)?, table: operator.table(4)? };
    Ok(match name {
        "CONV_2D" => Options::Convolution(union.of(1)?.window(Some([5, 4]), 3)?),
        "DEPTHWISE_CONV_2D" => {
            let fields = union.of(2)?;
            Options::Depthwise { window: fields.window(Some([6, 5]), 4)?, multiplier: fields.int(3, 0)? }
        }
        "AVERAGE_POOL_2D" | "MAX_POOL_2D" => {
            let fields = union.of(5)?;
            Options::Pool { window: fields.window(None, 5)?, kernel: [fields.int(4, 0)?, fields.int(3, 0)?] }
        }
        "ADD" => Options::Fused { activation: union.of(11)?.byte(0)? },
        "MUL" => Options::Fused { activation: union.of(21)?.byte(0)? },
        "FULLY_CONNECTED" => {
            let fields = union.of(8)?;
            Options::FullyConnected { activation: fields.byte(0)?, weights_format: fields.byte(1)? }
        }
        "CONCATENATION" => {
            let fields = union.of(10)?;
            Options::Concatenation { axis: fields.int(0, 0)?, activation: fields.byte(1)? }
        }
        "SOFTMAX" => Options::Softmax { beta: union.of(9)?.float(0)? },
        "MEAN" => Options::Reducer { keep_dims: union.of(27)?.byte(0)? != 0 },
        _ => Options::None,
    })
}

/// Options as the file stores them.
struct Union<'a> {
    kind: u8,
    table: Option<Table<'a>>,
}

impl<'a> Union<'a> {
    /// The options, which must be of kind `kind`; absent ones have every default.
    fn of(&self, kind: u8) -> Result<Fields<'a>, String> {
        if self.table.is_some() && self.kind != kind {
            return Err(format!("has options of kind {} instead of {kind}", self.kind));
        }
        Ok(Fields(self.table))
    }
}

struct Fields<'a>(Option<Table<'a>>);

impl Fields<'_> {
    fn int(&self, field: usize, default: i32) -> Result<i32, String> {
        Ok(self.0.map_or(Ok(default), |table| table.scalar(field, default))?)
    }

    fn byte(&self, field: usize) -> Result<i32, String> {
        Ok(self.0.map_or(Ok(0), |table| table.scalar::<i8>(field, 0))?.into())
    }

    fn float(&self, field: usize) -> Result<f32, String> {
        Ok(self.0.map_or(Ok(0.0), |table| table.scalar(field, 0.0))?)
    }

    /// The options of a window: rule and strides in fields 0 to 2, dilations `[h, w]` where the operator has them.
    fn window(&self, dilation: Option<[usize; 2]>, activation: usize) -> Result<WindowOptions, String> {
        Ok(WindowOptions {
            padding: self.byte(0)?,
            stride: [self.int(2, 0)?, self.int(1, 0)?],
            dilation: match dilation {
                Some([h, w]) => [self.int(h, 1)?, self.int(w, 1)?],
                None => [1, 1],
            },
            activation: self.byte(activation)?,
        })
    }
}
