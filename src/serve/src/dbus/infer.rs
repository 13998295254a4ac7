//! `org.cairn.Inference1`.

use std::sync::Arc;
use std::time::Instant;

use api::dbus::{Blob, Details, Seen, WireTensor, unseal};
use api::mqtt::SeenObject;
use api::tensor::{Datatype, OptionValue, Options, Tensor};
use api::{ErrorCode, Failure, Result};
use engine::{Engine, ModelInfo};
use kit::bus::{Clients, WireOptions};
use tracing::Instrument as _;
use zbus::Variant;
use zbus::message::Header;
use zbus::wire::OwnedVariant;

use crate::request::{self, Answer, Body};

/// The largest encoded picture.
const PICTURE_BYTES: usize = 32 << 20;

/// What both methods return: outputs, what was seen, details.
type Reply = (Vec<WireTensor>, Vec<Seen>, Details);

/// Answers with one model.
#[derive(Debug)]
pub(super) struct Inference {
    engine: Engine,
    model: Arc<ModelInfo>,
    clients: Clients,
}

impl Inference {
    pub(super) fn new(engine: &Engine, model: &Arc<ModelInfo>, clients: &Clients) -> Self {
        Self { engine: engine.clone(), model: Arc::clone(model), clients: clients.clone() }
    }

    async fn answer(&self, body: Result<Body>, options: &WireOptions, call: &Header<'_>) -> Result<Reply> {
        let id = call.primary().serial_num().get();
        let span = tracing::info_span!("request", id, model = self.model.name, transport = "dbus");
        let answer = async {
            let answer = self.run(body, options, call).await;
            match &answer {
                Ok(answer) => tracing::debug!(verdict = answer.verdict, total_us = answer.timing.total_us, "answered"),
                Err(failure) => tracing::debug!(%failure, "refused"),
            }
            answer
        };
        reply(answer.instrument(span).await?)
    }

    async fn run(&self, body: Result<Body>, options: &WireOptions, call: &Header<'_>) -> Result<Answer> {
        let received = Instant::now();
        let options = parse_options(options)?;
        let body = body?;
        let with_outputs = body.wants_outputs(&options);
        let request = request::request(&self.model.name, body, &options, None, received)?;
        let pending = self.engine.submit(request).map_err(|error| request::failure(&error))?;
        tokio::select! {
            // Dropping `pending` is what cancels the request.
            () = self.clients.gone(call) => Err(Failure::new(ErrorCode::Cancelled, "the client left the bus")),
            reply = pending => request::answer(reply.map_err(|error| request::failure(&error))?, with_outputs),
        }
    }

    fn tensors(&self, tensors: &[WireTensor]) -> Result<Body> {
        // Before they are read: one descriptor may be given a thousand times.
        let (given, wanted) = (tensors.len(), self.model.inputs.len());
        if given > wanted {
            let message = format!("{given} tensors given, model {:?} takes {wanted}", self.model.name);
            return Err(Failure::invalid_tensor(message));
        }
        let limit = self.model.inputs.iter().map(engine::TensorInfo::bytes).max().unwrap_or(0);
        let tensor = |(name, datatype, shape, data): &WireTensor| {
            let in_tensor =
                |failure: Failure| Failure::new(failure.code, format!("tensor {name:?}: {}", failure.message));
            let datatype = Datatype::parse(datatype).map_err(in_tensor)?;
            Tensor::new(name.clone(), datatype, shape, unseal(data, limit).map_err(in_tensor)?)
        };
        tensors.iter().map(tensor).collect::<Result<_>>().map(Body::Tensors)
    }
}

#[zbus::interface(name = "org.cairn.Inference1", introspection_docs = false)]
impl Inference {
    // The macro reads the results off a tuple; behind a name it would see one.
    #[zbus(out_args("outputs", "seen", "details"))]
    async fn infer(
        &self,
        tensors: Vec<WireTensor>,
        options: WireOptions,
        #[zbus(header)] call: Header<'_>,
    ) -> Result<(Vec<WireTensor>, Vec<Seen>, Details)> {
        self.answer(self.tensors(&tensors), &options, &call).await
    }

    #[zbus(out_args("outputs", "seen", "details"))]
    async fn infer_picture(
        &self,
        picture: OwnedVariant,
        options: WireOptions,
        #[zbus(header)] call: Header<'_>,
    ) -> Result<(Vec<WireTensor>, Vec<Seen>, Details)> {
        self.answer(unseal(&picture, PICTURE_BYTES).map(Body::Picture), &options, &call).await
    }
}

fn parse_options(wire: &WireOptions) -> Result<Options> {
    let mut options = Options::default();
    for (key, value) in wire {
        let value = match &**value {
            Variant::Str(text) => OptionValue::Text(text.as_str()),
            Variant::U32(number) => OptionValue::Number((*number).into()),
            Variant::U64(number) => OptionValue::Number(*number),
            Variant::Bool(flag) => OptionValue::Flag(*flag),
            _ => OptionValue::Other,
        };
        options.set(key, value)?;
    }
    Ok(options)
}

fn reply(answer: Answer) -> Result<Reply> {
    let timing = answer.timing;
    let details = [
        ("model-version", Variant::from(answer.version)),
        ("verdict", Variant::from(answer.verdict)),
        ("queued-us", Variant::from(timing.queued_us)),
        ("prepare-us", Variant::from(timing.prepare_us)),
        ("npu-us", Variant::from(timing.npu_us)),
        ("total-us", Variant::from(timing.total_us)),
    ];
    let details = details.into_iter().map(|(key, value)| Ok((key.to_owned(), OwnedVariant::try_from(value)?)));
    Ok((
        answer.outputs.into_iter().map(wire_tensor).collect::<Result<_>>()?,
        answer.seen.into_iter().map(wire_seen).collect::<Result<_>>()?,
        details.collect::<zbus::Result<_>>()?,
    ))
}

fn wire_tensor(tensor: Tensor) -> Result<WireTensor> {
    let data = Blob::new(tensor.data().clone())?.into_variant();
    Ok((tensor.name().to_owned(), tensor.datatype().name().to_owned(), tensor.wire_shape(), data))
}

fn wire_seen(seen: SeenObject) -> Result<Seen> {
    let class = u32::try_from(seen.class)
        .map_err(|_| Failure::new(ErrorCode::Internal, format!("class {} is over 32 bits", seen.class)))?;
    let [left, top, right, bottom] = seen.bounds.unwrap_or([0.0, 0.0, 1.0, 1.0]).map(f64::from);
    Ok((seen.label, class, seen.score.into(), (left, top, right, bottom)))
}
