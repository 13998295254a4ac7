//! Convolutions, transposed convolutions and resizing on the simulator: what the plans are, what the cost model says, what
//! comes out.

use anyhow::Result;
use half::f16;
use npu::conv::{Conv, Gives, Image, Output, Quantised, Transposed};
use npu::{Activation, Bias, Chip, Context, Options, Padding, Quant, Window};
use npu_sim::Simulator;

const SHAPE: [usize; 3] = [56, 56, 64];

fn main() -> Result<()> {
    let mut context = Context::open(&Simulator::default(), &Chip::RK3588, Options::default())?;
    println!("pictures of ones, {SHAPE:?}");
    let window = Window::square(3, 1).same([SHAPE[0], SHAPE[1]])?;
    let half = [f16::ONE; 9 * 64 * 64];
    let bias = [0.5; 64];
    let conv = Conv::direct(window, 64, &half).bias(Bias::F32(&bias)).activation(Activation::Relu);
    show::<f16, f16>("fp16 → fp16, bias, at least 0", &mut context, f16::ONE, &conv)?;
    let integers = [1i8; 9 * 64 * 64];
    show::<i8, i32>("int8 → int32", &mut context, 1, &Conv::direct(window, 64, &integers))?;
    let scales: Vec<f32> = (1..=64u8).map(|channel| f32::from(channel) / 1000.0).collect();
    let input = Quant { scale: 1.0, zero_point: -3 };
    let quantised = Quantised { input, filter_scales: &scales, output: Quant::NONE, ..Quantised::default() };
    let conv = Conv::direct(window, 64, &integers).quantised(quantised);
    show::<i8, i8>("int8 → int8, a scale per channel", &mut context, 1, &conv)?;
    let conv = Conv::depthwise(window, 64, &integers[..9 * 64]).quantised(quantised);
    show::<i8, i8>("int8 depthwise", &mut context, 1, &conv)?;
    unfolded(&mut context, &half)?;
    transposed(&mut context, &half)
}

fn show<In, Out>(what: &str, context: &mut Context, one: In, conv: &Conv<'_, In>) -> Result<()>
where
    In: Gives<Out>,
    Out: Output,
{
    let input = vec![one; SHAPE.iter().product()];
    let mut loaded = context.load_conv::<In, Out>(SHAPE, conv)?;
    let mut results = vec![Out::default(); loaded.plan().output().iter().product()];
    let report = loaded.run(context, Image::new(&input, SHAPE)?, &mut results)?;
    println!(
        "{what}: {} pieces, {} tasks in {} jobs, {:?} by the cost model; corner {:?}, middle {:?}",
        loaded.plan().pieces(),
        report.tasks,
        report.jobs,
        loaded.plan().time(),
        results[0],
        results[(28 * 56 + 28) * 64]
    );
    Ok(())
}

/// Steps that no register says, as a product with a resident filter.
fn unfolded(context: &mut Context, filter: &[f16]) -> Result<()> {
    let conv = Conv::direct(Window::square(3, 9), 64, filter);
    let unfolded = context.load_unfolded::<f16, f16>(SHAPE, &conv)?;
    let input = vec![f16::ONE; SHAPE.iter().product()];
    let mut results = vec![f16::ZERO; unfolded.output().iter().product()];
    unfolded.run(context, Image::new(&input, SHAPE)?, &mut results)?;
    println!("fp16 with steps of 9, as a product: {:?} estimated; {:?}", unfolded.estimate(context), results[0]);
    Ok(())
}

fn transposed(context: &mut Context, filter: &[f16]) -> Result<()> {
    let shape = [14, 14, 64];
    let input = vec![f16::ONE; shape.iter().product()];
    let image = Image::new(&input, shape)?;
    let padding = Padding { top: 1, bottom: 1, left: 1, right: 1 };
    let transposed = Transposed::direct([4, 4], 32, &filter[..16 * 64 * 32]).stride([2, 2]).padding(padding);
    let route = transposed.route::<f16>(context.chip(), shape)?;
    let mut results = vec![f16::ZERO; 28 * 28 * 32];
    context.conv_transpose2d(image, &transposed, &mut results)?;
    println!("fp16 transposed, {route:?}: corner {:?}, middle {:?}", results[0], results[(14 * 28 + 14) * 32]);
    let scattered = context.load_scattered(shape, &transposed)?;
    scattered.run(context, image, &mut results)?;
    println!("the same, scattered: {:?} estimated; corner {:?}", scattered.estimate(context), results[0]);
    let mut larger = vec![f16::ZERO; 28 * 28 * 64];
    context.resize_bilinear(image, [2, 2], &mut larger)?;
    println!("twice as large: corner {:?}, middle {:?}", larger[0], larger[(14 * 28 + 14) * 64]);
    Ok(())
}
