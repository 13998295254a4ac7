//! One matrix product in every datatype, on the simulator: what the plan is, what the cost model says, what comes out.

use anyhow::Result;
use half::f16;
use npu::matmul::{Bf16, F16, F16ToF32, I4, I8, I16, MatmulPlan, Matrix, Numbers, Shape, Tf32};
use npu::{Chip, Context, Options};
use npu_sim::Simulator;

const SHAPE: Shape = Shape { rows: 64, depth: 1024, columns: 384 };

fn main() -> Result<()> {
    let mut context = Context::open(&Simulator::default(), &Chip::RK3588, Options::default())?;
    println!("C[{}, {}] = A[{0}, {}] · B[{1}, {2}]ᵀ of ones", SHAPE.rows, SHAPE.columns, SHAPE.depth);
    show::<F16>(&mut context, f16::ONE)?;
    show::<F16ToF32>(&mut context, f16::ONE)?;
    show::<I8>(&mut context, 1)?;
    show::<I4>(&mut context, 1)?;
    show::<I16>(&mut context, 1)?;
    show::<Bf16>(&mut context, 1.0)?;
    show::<Tf32>(&mut context, 1.0)
}

fn show<T: Numbers>(context: &mut Context, one: T::Factor) -> Result<()> {
    let Shape { rows, depth, columns } = SHAPE;
    let plan = MatmulPlan::new(context.chip(), T::PRODUCT, SHAPE, context.options())?;
    let (a, b) = (vec![one; rows * depth], vec![one; columns * depth]);
    let mut c = vec![T::Sum::default(); rows * columns];
    let (a, b) = (Matrix::new(&a, rows, depth)?, Matrix::new(&b, columns, depth)?);
    let report = context.matmul::<T>(a, b, &mut c)?;
    let tile = plan.tile();
    println!(
        "{}: tiles of {}×{}×{}, {} tasks in {} jobs of {} workers, {:?} on one core by the cost model; C[0, 0] = {:?}",
        T::PRODUCT,
        tile.rows,
        tile.depth,
        tile.columns,
        report.tasks,
        report.jobs,
        context.options().workers,
        plan.time(false),
        c[0]
    );
    Ok(())
}
