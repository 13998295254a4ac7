//! What the planner makes of published shapes: jobs, tasks, kicks, bytes, and the time of the cost model, which ranks plans and
//! measures nothing. No device takes part.

use anyhow::Result;
use npu::matmul::{MatmulPlan, Product, Shape};
use npu::{
    Activation, Bias, Chip, Conv2d, Depthwise, ElementType, Filter, NetworkBuilder, Options, Padding, Quant, Window,
};
use tests::numbers::millis;

/// Products: the planner's published example, and the feed-forward block of a 12-billion-parameter model for a prompt and for
/// one token.
const PRODUCTS: [(&str, Shape); 5] = [
    ("published example", Shape { rows: 512, depth: 3840, columns: 4096 }),
    ("gate or up, 512 tokens", Shape { rows: 512, depth: 3840, columns: 15360 }),
    ("down, 512 tokens", Shape { rows: 512, depth: 15360, columns: 3840 }),
    ("gate or up, one token", Shape { rows: 4, depth: 3840, columns: 15360 }),
    ("down, one token", Shape { rows: 4, depth: 15360, columns: 3840 }),
];

/// A convolution: where it is from, input `[h, w, c]`, kernel, stride, output channels; 0 of them for a depthwise one.
const CONVOLUTIONS: [(&str, [usize; 3], usize, usize, usize); 14] = [
    ("MobileNetV2, stem", [224, 224, 3], 3, 2, 32),
    ("MobileNetV2, depthwise", [112, 112, 32], 3, 1, 0),
    ("MobileNetV2, expansion", [56, 56, 24], 1, 1, 144),
    ("MobileNetV2, depthwise", [14, 14, 384], 3, 1, 0),
    ("MobileNetV2, head", [7, 7, 320], 1, 1, 1280),
    ("MobileDet, stem", [320, 320, 3], 3, 2, 32),
    ("MobileDet, pointwise", [160, 160, 16], 1, 1, 64),
    ("MobileDet, fused", [80, 80, 32], 3, 1, 128),
    ("MobileDet, pointwise", [20, 20, 96], 1, 1, 576),
    ("EfficientDet-Lite0, depthwise", [80, 80, 144], 5, 2, 0),
    ("EfficientDet-Lite0, pointwise", [20, 20, 112], 1, 1, 672),
    ("EfficientDet-Lite0, pointwise", [10, 10, 192], 1, 1, 1152),
    ("EfficientDet-Lite0, depthwise", [10, 10, 1152], 5, 1, 0),
    ("EfficientDet-Lite0, fusion", [40, 40, 64], 3, 1, 0),
];

fn main() -> Result<()> {
    println!("kicks are those of a stock driver, and of one with batched submit; times by the cost model, on one core");
    for (name, shape) in PRODUCTS {
        let Shape { rows, depth, columns } = shape;
        println!("{name}: {rows} × {depth} × {columns}");
        for product in Product::ALL {
            product_line(product, shape);
        }
    }
    for convolution in CONVOLUTIONS {
        convolution_line(convolution)?;
    }
    Ok(())
}

fn product_line(product: Product, shape: Shape) {
    let (chip, options) = (Chip::RK3588, Options::default());
    let plan = match MatmulPlan::new(&chip, product, shape, &options) {
        Ok(plan) => plan,
        Err(refused) => return println!("  {refused}"),
    };
    let tile = plan.tile();
    println!(
        "  {product}: tiles of {} × {} × {}, {:?} shared, {} jobs, {} tasks, {} or {} kicks, {:.1} MB, {} or {}",
        tile.rows,
        tile.depth,
        tile.columns,
        plan.reuse(),
        plan.jobs(),
        plan.tasks(),
        plan.kicks(false),
        plan.kicks(true),
        plan.bytes() as f64 / 1e6,
        millis(plan.time(false)),
        millis(plan.time(true)),
    );
    let plans = MatmulPlan::alternatives(&chip, product, shape, &options).unwrap_or_default();
    if let Some(rule) = plans.first().filter(|rule| **rule != plan) {
        let tile = rule.tile();
        println!(
            "    of {} plans; the published rule's: tiles of {} × {} × {}, {:.1} MB, {} and {} with the host's part, instead of {}",
            plans.len(),
            tile.rows,
            tile.depth,
            tile.columns,
            rule.bytes() as f64 / 1e6,
            millis(rule.time(true)),
            millis(rule.cost()),
            millis(plan.cost()),
        );
    }
}

fn convolution_line((name, shape, kernel, stride, channels): (&str, [usize; 3], usize, usize, usize)) -> Result<()> {
    let [height, width, inputs] = shape;
    let quant = Quant { scale: 0.02, zero_point: 3 };
    let mut builder = NetworkBuilder::new(&Chip::RK3588);
    let input = builder.input(shape, ElementType::I8, quant)?;
    let (before, after) = same(kernel, stride, height);
    let padding = Padding { top: before, bottom: after, left: before, right: after };
    let window = Window { kernel: [kernel; 2], stride: [stride; 2], dilation: [1, 1], padding };
    let count = kernel * kernel * inputs * channels.max(1);
    // Any weights that no channel's results are constant with.
    let data: Vec<u8> = (0..count).map(|i| (i * 37 % 251) as u8).collect();
    let filter = Filter { data: &data, scales: &[0.01], zero_points: &[] };
    let (bias, activation) = (Bias::None, Activation::Relu6);
    let output = match channels {
        0 => builder.depthwise(input, &Depthwise { window, multiplier: 1, filter, bias, output: quant, activation })?,
        _ => builder.conv2d(input, &Conv2d { window, channels, filter, bias, output: quant, activation })?,
    };
    builder.output(output);
    let network = builder.build()?;
    let report = network.report();
    let kind = if channels == 0 { "depthwise".into() } else { format!("to {channels}") };
    println!(
        "{name}: {height} × {width} × {inputs} {kind}, {kernel} × {kernel} by {stride}: {} jobs, {} tasks, {} or {} kicks, {:.2} MB, {}",
        report.jobs,
        report.tasks,
        report.tasks,
        report.jobs,
        report.bytes_moved as f64 / 1e6,
        millis(report.predicted),
    );
    Ok(())
}

/// TFLite's padding for as many outputs as steps: before and after.
fn same(kernel: usize, stride: usize, extent: usize) -> (usize, usize) {
    let all = ((extent.div_ceil(stride) - 1) * stride + kernel).saturating_sub(extent);
    (all / 2, all.div_ceil(2))
}
