//! The border to TFLite: its entry points, its structures, and a safe view of its graph.
//!
//! ```text
//! create ─▶ Delegate{data: Arc<Accelerator>}     destroy drops it
//! Prepare(context, delegate) ─▶ survey ─▶ replace: for each part  init ─▶ Loaded   free drops it
//!                                                              prepare, invoke
//! ```
//!
//! Every function that TFLite calls catches panics. Pointers are those that TFLite promises: a context, node or delegate
//! lives for the call, and what `init` and `create` return comes back unchanged.

#![allow(unsafe_code)]

mod abi;
mod params;
mod runtime;

use std::ffi::{CString, c_char, c_int, c_void};
use std::fs::File;
use std::io::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use crate::accelerator::Accelerator;
use crate::kernel::Kernel;
use crate::settings::{Destination, Settings, VARIABLE};
use crate::survey::Survey;
pub(crate) use runtime::{Runtime, Subset};

/// What `init` makes of a claimed subset; `prepare` reports an error, `init` cannot.
type Loaded = Result<Kernel, String>;

/// Creates a delegate; null where that fails, with the reason given to `report_error` or printed where there is none.
///
/// # Safety
/// `keys` and `values` have `count` strings each; `report_error` may be called until this function returns.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn tflite_plugin_create_delegate(
    keys: *const *const c_char,
    values: *const *const c_char,
    count: usize,
    report_error: Option<unsafe extern "C" fn(*const c_char)>,
) -> *mut abi::Delegate {
    let created = caught(|| {
        // SAFETY: as the caller promises.
        let options = unsafe { options(keys, values, count) }?;
        let variable = std::env::var(VARIABLE).ok();
        Accelerator::start(Settings::read(variable.as_deref(), &options)?)
    });
    match created {
        Ok(accelerator) => Box::into_raw(Box::new(abi::Delegate {
            data: Arc::into_raw(Arc::new(accelerator)).cast_mut().cast(),
            prepare: Some(prepare_delegate),
            copy_from_buffer_handle: std::ptr::null(),
            copy_to_buffer_handle: std::ptr::null(),
            free_buffer_handle: std::ptr::null(),
            // Without flags, the runtime calls with static shapes only, and again after each resize.
            flags: 0,
            opaque_delegate_builder: std::ptr::null_mut(),
        })),
        Err(reason) => {
            let line = format!("cairn: {reason}");
            match report_error {
                // SAFETY: the callback is the caller's, and the string lives through the call.
                Some(report) => unsafe { report(text(&line).as_ptr()) },
                None => eprintln!("{line}"),
            }
            std::ptr::null_mut()
        }
    }
}

/// Destroys a delegate. Interpreters that still have parts of it keep its engine.
///
/// # Safety
/// `delegate` is from [`tflite_plugin_create_delegate`] and is not used any more, or null.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn tflite_plugin_destroy_delegate(delegate: *mut abi::Delegate) {
    if delegate.is_null() {
        return;
    }
    // SAFETY: the delegate was boxed when it was created.
    let delegate = unsafe { Box::from_raw(delegate) };
    // SAFETY: the data is the reference that was given away when the delegate was created.
    let accelerator = unsafe { Arc::from_raw(delegate.data.cast_const().cast::<Accelerator>()) };
    // A panic while threads are joined has nobody to be told.
    let _ = caught(|| {
        drop(accelerator);
        Ok(())
    });
}

/// The options as pairs.
///
/// # Safety
/// `keys` and `values` have `count` strings each.
unsafe fn options(
    keys: *const *const c_char,
    values: *const *const c_char,
    count: usize,
) -> Result<Vec<(String, String)>, String> {
    if count > 0 && (keys.is_null() || values.is_null()) {
        return Err(format!("{count} options without keys or values"));
    }
    let one = |at| {
        // SAFETY: there are `count` keys.
        let key = unsafe { runtime::string(*keys.add(at)) };
        // SAFETY: there are `count` values.
        let value = unsafe { runtime::string(*values.add(at)) };
        (key, value)
    };
    Ok((0..count).map(one).collect())
}

/// TFLite's `Prepare`: claims what the NPU computes.
unsafe extern "C" fn prepare_delegate(context: *mut abi::Context, delegate: *mut abi::Delegate) -> c_int {
    // SAFETY: TFLite calls with a context that lives through the call.
    let mut runtime = unsafe { Runtime::new(context, delegate) };
    let claimed = caught(|| {
        // SAFETY: TFLite calls with the delegate that it was given.
        let accelerator = unsafe { accelerator(delegate) };
        runtime.release_tensors();
        let survey = Survey::of(&runtime)?;
        if let Some(destination) = &accelerator.settings().report {
            say(destination, &format!("cairn on {}: {survey}", accelerator.settings().device.display()))?;
        }
        match survey.claimed() {
            claimed if claimed.is_empty() => Ok(()),
            claimed => runtime.replace(&claimed, registration(), delegate),
        }
    });
    status(&mut runtime, claimed)
}

/// How a part of the graph is run.
fn registration() -> abi::Registration {
    abi::Registration {
        init: Some(init_kernel),
        free: Some(free_kernel),
        prepare: Some(prepare_kernel),
        invoke: Some(invoke_kernel),
        profiling_string: std::ptr::null(),
        builtin_code: abi::BUILTIN_DELEGATE,
        custom_name: c"CairnDelegate".as_ptr(),
        version: 1,
        registration_external: std::ptr::null_mut(),
        async_kernel: std::ptr::null(),
        inplace_operator: 0,
    }
}

unsafe extern "C" fn init_kernel(context: *mut abi::Context, params: *const c_char, _: usize) -> *mut c_void {
    let loaded: Loaded = caught(|| {
        // SAFETY: a delegate's nodes are initialised with parameters of this type, which live through the call.
        let params = unsafe { params.cast::<abi::DelegateParams>().as_ref() }.ok_or("a subset has no parameters")?;
        // SAFETY: TFLite calls with a context that lives through the call.
        let runtime = unsafe { Runtime::new(context, params.delegate) };
        // SAFETY: the parameters name the delegate that claimed the subset.
        let accelerator = unsafe { accelerator(params.delegate) };
        // SAFETY: the lists live as long as the parameters.
        let subset = unsafe { Subset::of(params) };
        Kernel::new(&accelerator, &runtime, &subset)
    });
    Box::into_raw(Box::new(loaded)).cast()
}

unsafe extern "C" fn free_kernel(_: *mut abi::Context, kernel: *mut c_void) {
    if kernel.is_null() {
        return;
    }
    // SAFETY: TFLite gives back what `init` returned, once.
    let loaded = unsafe { Box::from_raw(kernel.cast::<Loaded>()) };
    // A panic while a part is unloaded has nobody to be told.
    let _ = caught(|| {
        drop(loaded);
        Ok(())
    });
}

unsafe extern "C" fn prepare_kernel(context: *mut abi::Context, node: *mut abi::Node) -> c_int {
    // SAFETY: TFLite calls with a context that lives through the call.
    let mut runtime = unsafe { Runtime::new(context, std::ptr::null()) };
    // SAFETY: the node is one that `init_kernel` was called for.
    let loaded = unsafe { kernel(node) }.map(drop);
    status(&mut runtime, loaded)
}

unsafe extern "C" fn invoke_kernel(context: *mut abi::Context, node: *mut abi::Node) -> c_int {
    // SAFETY: TFLite calls with a context that lives through the call.
    let mut runtime = unsafe { Runtime::new(context, std::ptr::null()) };
    let done = caught(|| {
        // SAFETY: the node is one that `init_kernel` was called for.
        unsafe { kernel(node) }?.invoke(&mut runtime)
    });
    status(&mut runtime, done)
}

/// What `init` made of a node.
///
/// # Safety
/// `node` is null or a node that [`init_kernel`] was called for, and lives through the call.
unsafe fn kernel<'a>(node: *const abi::Node) -> Result<&'a Kernel, String> {
    // SAFETY: as the caller promises.
    let node = unsafe { node.as_ref() }.ok_or("there is no node")?;
    // SAFETY: a node's user data is what `init` returned.
    let loaded = unsafe { node.user_data.cast_const().cast::<Loaded>().as_ref() };
    loaded.ok_or("the node was never initialised")?.as_ref().map_err(String::clone)
}

/// The delegate's engine.
///
/// # Safety
/// `delegate` is from [`tflite_plugin_create_delegate`].
unsafe fn accelerator(delegate: *const abi::Delegate) -> Arc<Accelerator> {
    // SAFETY: as the caller promises.
    let data = unsafe { (*delegate).data.cast_const().cast::<Accelerator>() };
    // SAFETY: the data is a reference that the delegate owns, and the new one is counted.
    unsafe { Arc::increment_strong_count(data) };
    // SAFETY: this is the reference that was just counted.
    unsafe { Arc::from_raw(data) }
}

/// Runs what TFLite has called for; a panic is an error.
fn caught<T>(body: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    // What a panic left half-done is not used again: its error ends the call.
    let result = catch_unwind(AssertUnwindSafe(body));
    result.unwrap_or_else(|_| Err("internal: a panic, printed to standard error".to_owned()))
}

/// TFLite's status, with the reason of an error reported.
fn status(runtime: &mut Runtime<'_>, result: Result<(), String>) -> c_int {
    match result {
        Ok(()) => abi::OK,
        Err(reason) => {
            runtime.report_error(&text(&format!("cairn: {reason}")));
            abi::ERROR
        }
    }
}

/// A line for C; what follows a NUL is lost.
fn text(line: &str) -> CString {
    let bytes: Vec<u8> = line.bytes().take_while(|byte| *byte != 0).collect();
    CString::new(bytes).unwrap_or_default()
}

fn say(destination: &Destination, report: &str) -> Result<(), String> {
    let Destination::File(path) = destination else {
        eprint!("{report}");
        return Ok(());
    };
    let file = File::options().create(true).append(true).open(path);
    let written = file.and_then(|mut file| file.write_all(report.as_bytes()));
    written.map_err(|error| format!("write the report {}: {error}", path.display()))
}
