"""Programs of the corpus that others wrote: packages of PyPI, with their sizes cut.

Each function imports its package when it is called (``requirements.txt``).  Weights are shapes
only: nothing is downloaded, nothing is initialised.
"""

# Packages that type checkers do not know are imported where they are used.
# mypy: ignore-errors
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from tests.corpus.own_programs import F32, Tree, cross_entropy, gradient_step, trained
from tests.corpus.program import Program, shapes
from toast_lab import frontends
from toast_lab.ir.model import Model


def _ints(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.int32)


def _key() -> jax.Array:
    return jax.random.PRNGKey(0)


def _flax_weights(model: Any, shape: tuple[int, ...]) -> Tree:
    """Shapes of the weights of a Flax model of ``transformers`` or ``diffusers``."""
    return jax.eval_shape(lambda key: model.init_weights(key, shape), _key())


# -- transformers ---------------------------------------------------------------------------------
def gpt2() -> Model:
    """A gradient step of GPT-2 with one layer and its whole vocabulary, rounded up."""
    from transformers import FlaxGPT2LMHeadModel, GPT2Config

    config = GPT2Config(
        n_layer=1,
        n_embd=1024,
        n_head=16,
        vocab_size=50304,
        n_positions=1024,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        use_cache=False,
    )
    model = FlaxGPT2LMHeadModel(config, _do_init=False, dtype=jnp.bfloat16)
    return trained(_token_loss(model), _flax_weights(model, (1, 8)), _ints(16, 1024))


def _token_loss(model: Any) -> Callable[..., jax.Array]:
    """Of models that ask for positions."""

    def loss(parameters: Tree, ids: jax.Array) -> jax.Array:
        positions = jnp.broadcast_to(jnp.arange(ids.shape[1]), ids.shape)
        logits = model(ids, jnp.ones_like(ids), positions, params=parameters)[0]
        return cross_entropy(logits[:, :-1], ids[:, 1:])

    return loss


def llama() -> Model:
    """A gradient step of Llama with one layer."""
    from transformers import FlaxLlamaForCausalLM, LlamaConfig

    model = FlaxLlamaForCausalLM(_llama_sizes(LlamaConfig), _do_init=False, dtype=jnp.bfloat16)
    return trained(_token_loss(model), _flax_weights(model, (1, 8)), _ints(8, 1024))


def _llama_sizes(config: Any) -> Any:
    return config(
        hidden_size=2048,
        intermediate_size=5632,
        num_hidden_layers=1,
        num_attention_heads=16,
        vocab_size=32000,
        max_position_embeddings=1024,
        use_cache=True,
    )


def _decode(model: Any, batch: int, length: int, name: str) -> Model:
    """One token against a cache of ``length`` positions."""
    weights = _flax_weights(model, (1, 8))
    cache = jax.eval_shape(lambda: model.init_cache(batch, length))

    def step(parameters: Tree, cache: Tree, ids: jax.Array, position: jax.Array) -> Any:
        result = model(
            ids,
            jnp.ones((batch, length), jnp.int32),
            jnp.broadcast_to(position, (batch, 1)),
            params=parameters,
            past_key_values=cache,
        )
        return jnp.argmax(result.logits[:, -1], -1), result.past_key_values

    return frontends.from_jax(
        step, weights, cache, _ints(batch, 1), _ints(), donate_argnums=1, name=name
    )


def llama_decode() -> Model:
    """One token of Llama for each of 64 sequences."""
    from transformers import FlaxLlamaForCausalLM, LlamaConfig

    model = FlaxLlamaForCausalLM(_llama_sizes(LlamaConfig), _do_init=False, dtype=jnp.bfloat16)
    return _decode(model, 64, 1024, "llama_decode")


def gpt2_decode() -> Model:
    """One token of GPT-2 for each of 128 sequences."""
    from transformers import FlaxGPT2LMHeadModel, GPT2Config

    config = GPT2Config(n_layer=2, n_embd=2048, n_head=16, vocab_size=50304, n_positions=1024)
    model = FlaxGPT2LMHeadModel(config, _do_init=False, dtype=jnp.bfloat16)
    return _decode(model, 128, 1024, "gpt2_decode")


def bert() -> Model:
    """A gradient step of BERT with one layer, in float32."""
    from transformers import BertConfig, FlaxBertForMaskedLM

    config = BertConfig(
        hidden_size=1024,
        num_hidden_layers=1,
        num_attention_heads=16,
        intermediate_size=4096,
        vocab_size=30528,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    model = FlaxBertForMaskedLM(config, _do_init=False)

    def loss(parameters: Tree, ids: jax.Array, labels: jax.Array) -> jax.Array:
        return cross_entropy(model(ids, params=parameters)[0], labels)

    return trained(loss, _flax_weights(model, (1, 8)), _ints(64, 512), _ints(64, 512))


def bart() -> Model:
    """A gradient step of BART with a layer each of encoder and decoder."""
    from transformers import BartConfig, FlaxBartForConditionalGeneration

    config = BartConfig(
        d_model=1024,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=16,
        decoder_attention_heads=16,
        encoder_ffn_dim=4096,
        decoder_ffn_dim=4096,
        vocab_size=50272,
        dropout=0.0,
        use_cache=False,
    )
    model = FlaxBartForConditionalGeneration(config, _do_init=False, dtype=jnp.bfloat16)

    def loss(parameters: Tree, ids: jax.Array, labels: jax.Array) -> jax.Array:
        result = model(ids, decoder_input_ids=labels, params=parameters)
        return cross_entropy(result.logits, labels)

    return trained(loss, _flax_weights(model, (1, 8)), _ints(32, 512), _ints(32, 256))


def vit() -> Model:
    """A gradient step of a vision Transformer with two layers."""
    from transformers import FlaxViTForImageClassification, ViTConfig

    config = ViTConfig(
        hidden_size=1024,
        num_hidden_layers=2,
        num_attention_heads=16,
        intermediate_size=4096,
        image_size=224,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        num_labels=1024,
    )
    model = FlaxViTForImageClassification(config, _do_init=False, dtype=jnp.bfloat16)

    def loss(parameters: Tree, images: jax.Array, labels: jax.Array) -> jax.Array:
        return cross_entropy(model(images, params=parameters)[0], labels)

    weights = _flax_weights(model, (1, 224, 224, 3))
    return trained(loss, weights, shapes((256, 3, 224, 224), F32), _ints(256))


def clip() -> Model:
    """A gradient step of CLIP: two encoders of one layer, and the batch against itself."""
    from transformers import CLIPConfig, CLIPTextConfig, CLIPVisionConfig, FlaxCLIPModel

    text = CLIPTextConfig(
        hidden_size=512,
        intermediate_size=2048,
        num_hidden_layers=1,
        num_attention_heads=8,
        vocab_size=49408,
    )
    image = CLIPVisionConfig(
        hidden_size=1024,
        intermediate_size=4096,
        num_hidden_layers=1,
        num_attention_heads=16,
        image_size=224,
        patch_size=32,
    )
    model = FlaxCLIPModel(CLIPConfig.from_text_vision_configs(text, image), _do_init=False)
    weights = jax.eval_shape(
        lambda key: model.init_weights(key, ((1, 8), (1, 224, 224, 3))), _key()
    )

    def loss(parameters: Tree, ids: jax.Array, images: jax.Array) -> jax.Array:
        scores = model(ids, images, params=parameters).logits_per_text
        return cross_entropy(scores, jnp.arange(scores.shape[0]))

    return trained(loss, weights, _ints(512, 64), shapes((512, 3, 224, 224), F32))


def resnet() -> Model:
    """Inference of a residual network of bottlenecks."""
    from transformers import FlaxResNetForImageClassification, ResNetConfig

    config = ResNetConfig(
        embedding_size=64, hidden_sizes=[256, 512, 1024, 2048], depths=[1, 1, 1, 1], num_labels=1024
    )
    model = FlaxResNetForImageClassification(config, _do_init=False, dtype=jnp.bfloat16)
    weights = _flax_weights(model, (1, 224, 224, 3))

    def forward(parameters: Tree, images: jax.Array) -> jax.Array:
        return model(images, params=parameters)[0]

    return frontends.from_jax(forward, weights, shapes((256, 3, 224, 224), F32), name="resnet")


def whisper_encoder() -> Model:
    """A gradient step of a speech encoder: two convolutions and one layer of attention."""
    from transformers import WhisperConfig
    from transformers.models.whisper.modeling_flax_whisper import FlaxWhisperEncoder

    config = WhisperConfig(
        d_model=1024,
        encoder_layers=1,
        encoder_attention_heads=16,
        encoder_ffn_dim=4096,
        dropout=0.0,
        max_source_positions=1500,
    )
    module = FlaxWhisperEncoder(config)
    sound = shapes((16, 80, 3000), F32)
    weights = jax.eval_shape(module.init, _key(), sound)

    def loss(parameters: Tree, sound: jax.Array) -> jax.Array:
        return (module.apply(parameters, sound)[0] ** 2).mean()

    return trained(loss, weights, sound)


# -- diffusers ------------------------------------------------------------------------------------
def latent_diffusion() -> Model:
    """One denoising step of a conditioned U-Net in two levels."""
    from diffusers import FlaxUNet2DConditionModel

    model = FlaxUNet2DConditionModel(
        sample_size=32,
        block_out_channels=(320, 640),
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
        layers_per_block=1,
        cross_attention_dim=768,
        attention_head_dim=8,
        dtype=jnp.bfloat16,
    )
    weights = jax.eval_shape(model.init_weights, _key())

    def forward(parameters: Tree, latent: jax.Array, t: jax.Array, text: jax.Array) -> jax.Array:
        return model.apply({"params": parameters}, latent, t, text).sample

    return frontends.from_jax(
        forward,
        weights,
        shapes((64, 4, 32, 32), jnp.bfloat16),
        _ints(64),
        shapes((64, 77, 768), jnp.bfloat16),
        name="latent_diffusion",
    )


# -- recurrent ------------------------------------------------------------------------------------
def flax_lstm() -> Model:
    """A gradient step of a language model with one LSTM of Flax."""
    from flax import linen as nn

    class Net(nn.Module):
        @nn.compact
        def __call__(self, ids: jax.Array) -> jax.Array:
            x = nn.Embed(16384, 1024)(ids)
            x = nn.RNN(nn.OptimizedLSTMCell(2048))(x)
            return nn.Dense(16384)(x)

    model = Net()
    weights = jax.eval_shape(model.init, _key(), _ints(1, 32))

    def loss(parameters: Tree, ids: jax.Array) -> jax.Array:
        return cross_entropy(model.apply(parameters, ids)[:, :-1], ids[:, 1:])

    return trained(loss, weights, _ints(256, 32))


def haiku_gru() -> Model:
    """A gradient step of two stacked GRUs of Haiku."""
    import haiku as hk

    def forward(x: jax.Array) -> jax.Array:
        core = hk.DeepRNN([hk.GRU(1024), hk.GRU(1024)])
        y, _ = hk.dynamic_unroll(core, x, core.initial_state(x.shape[1]))
        return hk.BatchApply(hk.Linear(512))(y)

    net = hk.without_apply_rng(hk.transform(forward))
    x = shapes((32, 1024, 512), F32)

    def loss(parameters: Tree, x: jax.Array) -> jax.Array:
        return (net.apply(parameters, x) ** 2).mean()

    return trained(loss, jax.eval_shape(net.init, _key(), x), x)


def haiku_resnet() -> Model:
    """A gradient step of a residual network of Haiku with four blocks."""
    import haiku as hk

    def forward(images: jax.Array) -> jax.Array:
        net = hk.nets.ResNet((1, 1, 1, 1), 1024, bottleneck=True, resnet_v2=True)
        return net(images, is_training=True)

    net = hk.without_apply_rng(hk.transform_with_state(forward))
    images = shapes((128, 128, 128, 3), F32)
    parameters, state = jax.eval_shape(net.init, _key(), images)

    def loss(parameters: Tree, state: Tree, images: jax.Array, labels: jax.Array) -> jax.Array:
        logits, _ = net.apply(parameters, state, images)
        return cross_entropy(logits, labels)

    return trained(loss, parameters, state, images, _ints(128))


# -- graphs ---------------------------------------------------------------------------------------
def jraph_network() -> Model:
    """A gradient step of a graph network of jraph."""
    import jraph

    nodes, edges, size = 16384, 131072, 256

    def update(layers: Tree, *parts: jax.Array) -> jax.Array:
        x = jnp.concatenate([part for part in parts if part is not None], -1)
        return jax.nn.relu(x @ layers[0]) @ layers[1]

    def loss(parameters: Tree, features: Tree, senders: jax.Array, receivers: jax.Array) -> Any:
        graph = jraph.GraphsTuple(
            nodes=features[0],
            edges=features[1],
            senders=senders,
            receivers=receivers,
            globals=None,
            n_node=jnp.array([nodes]),
            n_edge=jnp.array([edges]),
        )
        net = jraph.GraphNetwork(
            update_edge_fn=lambda e, s, r, g: update(parameters["edge"], e, s, r),
            update_node_fn=lambda n, s, r, g: update(parameters["node"], n, s, r),
        )
        after = net(net(graph))
        return (after.nodes**2).mean()

    parameters = {
        "edge": [(3 * size, 1024), (1024, size)],
        "node": [(3 * size, 1024), (1024, size)],
    }
    features = [(nodes, size), (edges, size)]
    return trained(loss, shapes(parameters, F32), shapes(features, F32), _ints(edges), _ints(edges))


def graph_attention() -> Model:
    """A gradient step of a graph attention layer of jraph."""
    import jraph

    nodes, edges, inputs, size = 32768, 262144, 512, 512

    def loss(parameters: Tree, x: jax.Array, senders: jax.Array, receivers: jax.Array) -> Any:
        graph = jraph.GraphsTuple(
            nodes=x,
            edges=None,
            senders=senders,
            receivers=receivers,
            globals=None,
            n_node=jnp.array([nodes]),
            n_edge=jnp.array([edges]),
        )
        net = jraph.GAT(
            attention_query_fn=lambda n: n @ parameters["query"],
            attention_logit_fn=lambda s, r, e: (
                jax.nn.leaky_relu(jnp.concatenate([s, r], -1)) @ parameters["logit"]
            ),
            node_update_fn=lambda n: jax.nn.relu(n @ parameters["update"]),
        )
        return (net(graph).nodes ** 2).mean()

    parameters = {"query": (inputs, size), "logit": (2 * size, 1), "update": (size, size)}
    return trained(
        loss, shapes(parameters, F32), shapes((nodes, inputs), F32), _ints(edges), _ints(edges)
    )


# -- partial differential equations ---------------------------------------------------------------
def _equinox_step(make: Callable[[], Any], *batch: Any) -> Model:
    """A gradient step of an Equinox module on a batch of pairs."""
    import equinox as eqx

    parameters, static = eqx.partition(
        eqx.filter_eval_shape(make), lambda leaf: isinstance(leaf, jax.ShapeDtypeStruct)
    )

    def loss(parameters: Tree, x: jax.Array, y: jax.Array) -> jax.Array:
        return ((jax.vmap(eqx.combine(parameters, static))(x) - y) ** 2).mean()

    return frontends.from_jax(gradient_step(loss), parameters, *batch, donate_argnums=0)


def fourier_operator() -> Model:
    """A gradient step of a Fourier neural operator in two dims."""
    import pdequinox

    fields = shapes((32, 32, 128, 128), F32)
    return _equinox_step(
        lambda: pdequinox.arch.ClassicFNO(
            2, 32, 32, hidden_channels=64, num_modes=16, num_blocks=2, key=_key()
        ),
        fields,
        fields,
    )


def equinox_unet() -> Model:
    """A gradient step of a U-Net for fields."""
    import pdequinox

    fields = shapes((64, 4, 64, 64), F32)
    return _equinox_step(
        lambda: pdequinox.arch.ClassicUNet(2, 4, 4, hidden_channels=128, num_levels=2, key=_key()),
        fields,
        fields,
    )


def spectral_solver() -> Model:
    """Five steps of a pseudo-spectral solver of Burgers' equation for a batch of fields."""
    import exponax as ex

    stepper = ex.stepper.Burgers(2, 1.0, 256, 0.01)

    def rollout(fields: jax.Array) -> jax.Array:
        return jax.vmap(ex.rollout(stepper, 5))(fields)

    return frontends.from_jax(rollout, shapes((64, 2, 256, 256), F32), name="spectral_solver")


def neural_ode() -> Model:
    """A gradient step through four fixed Runge-Kutta steps of diffrax."""
    import diffrax

    size, hidden = 1024, 4096

    def loss(parameters: Tree, x: jax.Array) -> jax.Array:
        def field(t: jax.Array, y: jax.Array, weights: Tree) -> jax.Array:
            return jnp.tanh(y @ weights["up"]) @ weights["down"]

        solution = diffrax.diffeqsolve(
            diffrax.ODETerm(field),
            diffrax.Heun(),
            0.0,
            1.0,
            0.25,
            x,
            parameters,
            stepsize_controller=diffrax.ConstantStepSize(),
            saveat=diffrax.SaveAt(t1=True),
            max_steps=4,
            throw=False,
            adjoint=diffrax.DirectAdjoint(),
        )
        return (solution.ys[-1] ** 2).mean()

    parameters = {"up": (size, hidden), "down": (hidden, size)}
    return trained(loss, shapes(parameters, F32), shapes((8192, size), F32))


def descent() -> Model:
    """Logistic regression by ten steps of gradient descent of jaxopt."""
    import jaxopt

    def objective(w: jax.Array, x: jax.Array, y: jax.Array) -> jax.Array:
        return cross_entropy(x @ w, y) + 1e-4 * (w**2).sum()

    solver = jaxopt.GradientDescent(
        objective, maxiter=10, stepsize=1e-3, acceleration=True, implicit_diff=False, jit=False
    )

    def solve(w: jax.Array, x: jax.Array, y: jax.Array) -> jax.Array:
        state = solver.init_state(w, x, y)
        for _ in range(3):
            w, state = solver.update(w, state, x, y)
        return w

    return frontends.from_jax(
        solve, shapes((2048, 1024), F32), shapes((65536, 2048), F32), _ints(65536), name="descent"
    )


# -- tree search, transport, sampling -------------------------------------------------------------
def tree_search() -> Model:
    """Eight simulations of mctx with a learned model of the game."""
    import mctx

    batch, size, actions = 1024, 1024, 64

    def recurrent(parameters: Tree, key: jax.Array, action: jax.Array, state: jax.Array) -> Any:
        state = jax.nn.relu(state @ parameters["inner"] + parameters["action"][action])
        output = mctx.RecurrentFnOutput(
            reward=(state @ parameters["reward"])[:, 0],
            discount=jnp.ones((batch,)),
            prior_logits=state @ parameters["policy"],
            value=(state @ parameters["value"])[:, 0],
        )
        return output, state

    def act(parameters: Tree, key: jax.Array, observed: jax.Array) -> jax.Array:
        state = jax.nn.relu(observed @ parameters["inner"])
        root = mctx.RootFnOutput(
            prior_logits=state @ parameters["policy"],
            value=(state @ parameters["value"])[:, 0],
            embedding=state,
        )
        return mctx.muzero_policy(
            parameters, key, root, recurrent, num_simulations=8, max_depth=4
        ).action_weights

    parameters = {
        "inner": (size, size),
        "action": (actions, size),
        "reward": (size, 1),
        "value": (size, 1),
        "policy": (size, actions),
    }
    return frontends.from_jax(
        act,
        shapes(parameters, F32),
        jax.ShapeDtypeStruct((2,), jnp.uint32),
        shapes((batch, size), F32),
        name="tree_search",
    )


def sinkhorn() -> Model:
    """Ten rounds of Sinkhorn's algorithm of ott between two clouds of points."""
    from ott.geometry import pointcloud
    from ott.problems.linear import linear_problem
    from ott.solvers.linear import sinkhorn as solver

    def plan(x: jax.Array, y: jax.Array) -> jax.Array:
        geometry = pointcloud.PointCloud(x, y, epsilon=0.1)
        result = solver.Sinkhorn(
            min_iterations=10, max_iterations=10, inner_iterations=10, threshold=-1.0
        )(linear_problem.LinearProblem(geometry))
        return result.f

    return frontends.from_jax(
        plan, shapes((8192, 256), F32), shapes((8192, 256), F32), name="sinkhorn"
    )


def normalizing_flow() -> Model:
    """A gradient step of the likelihood of a coupling flow of flowjax."""
    import equinox as eqx
    import flowjax.distributions
    import flowjax.flows
    import paramax

    def make() -> Any:
        return flowjax.flows.coupling_flow(
            _key(),
            base_dist=flowjax.distributions.Normal(jnp.zeros(64)),
            nn_width=1024,
            nn_depth=2,
            flow_layers=2,
        )

    # Permutations are whole numbers, and part of the program.
    parameters, static = eqx.partition(make(), eqx.is_inexact_array)

    def loss(parameters: Tree, x: jax.Array) -> jax.Array:
        flow = paramax.unwrap(eqx.combine(parameters, static))
        return -flow.log_prob(x).mean()

    return trained(loss, parameters, shapes((8192, 64), F32))


def hamiltonian() -> Model:
    """One Hamiltonian step of blackjax for a Bayesian logistic regression, 32 chains."""
    import blackjax

    rows, columns, chains = 65536, 512, 32

    def step(key: jax.Array, position: jax.Array, x: jax.Array, y: jax.Array) -> jax.Array:
        def log_density(w: jax.Array) -> jax.Array:
            logit = x @ w
            return (y * logit - jnp.logaddexp(0.0, logit)).sum() - (w**2).sum()

        sampler = blackjax.hmc(log_density, 1e-3, jnp.ones(columns), num_integration_steps=4)

        def one(key: jax.Array, w: jax.Array) -> jax.Array:
            return sampler.step(key, sampler.init(w))[0].position

        return jax.vmap(one)(jax.random.split(key, chains), position)

    return frontends.from_jax(
        step,
        jax.ShapeDtypeStruct((2,), jnp.uint32),
        shapes((chains, columns), F32),
        shapes((rows, columns), F32),
        shapes((rows,), F32),
        name="hamiltonian",
    )


PROGRAMS = (
    Program("gpt2", "attention training", gpt2, "transformers"),
    Program("llama", "attention training", llama, "transformers"),
    Program("bert", "attention training", bert, "transformers"),
    Program("bart", "attention training", bart, "transformers"),
    Program("llama_decode", "attention decoding", llama_decode, "transformers"),
    Program("gpt2_decode", "attention decoding", gpt2_decode, "transformers"),
    Program("vit", "vision and speech", vit, "transformers"),
    Program("clip", "vision and speech", clip, "transformers"),
    Program("whisper_encoder", "vision and speech", whisper_encoder, "transformers"),
    Program("resnet", "convolution", resnet, "transformers"),
    Program("haiku_resnet", "convolution", haiku_resnet, "dm-haiku"),
    Program("latent_diffusion", "diffusion", latent_diffusion, "diffusers"),
    Program("equinox_unet", "U-Net", equinox_unet, "pdequinox"),
    Program("flax_lstm", "recurrent", flax_lstm, "flax"),
    Program("haiku_gru", "recurrent", haiku_gru, "dm-haiku"),
    Program("jraph_network", "graph", jraph_network, "jraph"),
    Program("graph_attention", "graph", graph_attention, "jraph"),
    Program("fourier_operator", "Fourier", fourier_operator, "pdequinox"),
    Program("spectral_solver", "Fourier", spectral_solver, "exponax"),
    Program("neural_ode", "implicit and ODE", neural_ode, "diffrax"),
    Program("descent", "linear algebra", descent, "jaxopt"),
    Program("tree_search", "tree search", tree_search, "mctx"),
    Program("sinkhorn", "linear algebra", sinkhorn, "ott-jax"),
    Program("normalizing_flow", "probabilistic", normalizing_flow, "flowjax"),
    Program("hamiltonian", "probabilistic", hamiltonian, "blackjax"),
)
