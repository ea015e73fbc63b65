"""Models of the corpus that others wrote: packages of PyPI, with their sizes cut.

Each function imports its package when it is called (``requirements.txt``).  Weights are shapes
only: nothing is downloaded, nothing is initialised.
"""

# Packages that type checkers do not know are imported where they are used.
# mypy: ignore-errors
from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from evaluation.corpus.own_programs import F32, Tree, cross_entropy, trained
from evaluation.corpus.program import Program, integers, random_key, shapes
from toast_lab import frontends
from toast_lab.ir.model import Model


def _flax_weights(model: Any, shape: tuple[int, ...]) -> Tree:
    """Shapes of the weights of a Flax model of ``transformers`` or ``diffusers``."""
    return jax.eval_shape(lambda key: model.init_weights(key, shape), random_key())


# -- transformers ---------------------------------------------------------------------------------
def gpt2(layers: int = 1) -> Model:
    """A gradient step of GPT-2 with few layers and its whole vocabulary, rounded up."""
    from transformers import FlaxGPT2LMHeadModel, GPT2Config

    config = GPT2Config(
        n_layer=layers,
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
    return trained(_token_loss(model), _flax_weights(model, (1, 8)), integers(16, 1024))


def _token_loss(model: Any) -> Callable[..., jax.Array]:
    """Of models that ask for positions."""

    def loss(parameters: Tree, ids: jax.Array) -> jax.Array:
        positions = jnp.broadcast_to(jnp.arange(ids.shape[1]), ids.shape)
        logits = model(ids, jnp.ones_like(ids), positions, params=parameters)[0]
        return cross_entropy(logits[:, :-1], ids[:, 1:])

    return loss


def llama(layers: int = 1) -> Model:
    """A gradient step of Llama with few layers."""
    from transformers import FlaxLlamaForCausalLM, LlamaConfig

    config = _llama_sizes(LlamaConfig, layers)
    model = FlaxLlamaForCausalLM(config, _do_init=False, dtype=jnp.bfloat16)
    return trained(_token_loss(model), _flax_weights(model, (1, 8)), integers(8, 1024))


def mistral() -> Model:
    """A gradient step of Mistral with one layer: groups of heads, a window of attention."""
    from transformers import FlaxMistralForCausalLM, MistralConfig

    config = MistralConfig(
        hidden_size=2048,
        intermediate_size=7168,
        num_hidden_layers=1,
        num_attention_heads=16,
        num_key_value_heads=4,
        vocab_size=32000,
        max_position_embeddings=1024,
        sliding_window=512,
    )
    model = FlaxMistralForCausalLM(config, _do_init=False, dtype=jnp.bfloat16)
    return trained(_token_loss(model), _flax_weights(model, (1, 8)), integers(16, 1024))


def _llama_sizes(config: Any, layers: int = 1) -> Any:
    return config(
        hidden_size=2048,
        intermediate_size=5632,
        num_hidden_layers=layers,
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
        step, weights, cache, integers(batch, 1), integers(), donate_argnums=1, name=name
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


def gemma_decode() -> Model:
    """One token of Gemma for each of 64 sequences: one head of keys, a large vocabulary."""
    from transformers import FlaxGemmaForCausalLM, GemmaConfig

    config = GemmaConfig(
        hidden_size=2048,
        intermediate_size=16384,
        num_hidden_layers=1,
        num_attention_heads=8,
        num_key_value_heads=1,
        head_dim=256,
        vocab_size=128000,
        max_position_embeddings=1024,
    )
    model = FlaxGemmaForCausalLM(config, _do_init=False, dtype=jnp.bfloat16)
    return _decode(model, 64, 1024, "gemma_decode")


def bert(layers: int = 1) -> Model:
    """A gradient step of BERT with few layers, in float32."""
    from transformers import BertConfig, FlaxBertForMaskedLM

    config = BertConfig(
        hidden_size=1024,
        num_hidden_layers=layers,
        num_attention_heads=16,
        intermediate_size=4096,
        vocab_size=30528,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    model = FlaxBertForMaskedLM(config, _do_init=False)

    def loss(parameters: Tree, ids: jax.Array, labels: jax.Array) -> jax.Array:
        return cross_entropy(model(ids, params=parameters)[0], labels)

    return trained(loss, _flax_weights(model, (1, 8)), integers(64, 512), integers(64, 512))


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

    return trained(loss, _flax_weights(model, (1, 8)), integers(32, 512), integers(32, 256))


def _classifier_step(model: Any, images: int) -> Model:
    """A gradient step of a model of ``transformers`` that classifies images."""

    def loss(parameters: Tree, images: jax.Array, labels: jax.Array) -> jax.Array:
        return cross_entropy(model(images, params=parameters)[0], labels)

    weights = _flax_weights(model, (1, 224, 224, 3))
    return trained(loss, weights, shapes((images, 3, 224, 224), F32), integers(images))


def _classified(model: Any, images: int, name: str) -> Model:
    """Inference of such a model."""

    def forward(parameters: Tree, images: jax.Array) -> jax.Array:
        return model(images, params=parameters)[0]

    weights = _flax_weights(model, (1, 224, 224, 3))
    return frontends.from_jax(forward, weights, shapes((images, 3, 224, 224), F32), name=name)


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
    return _classifier_step(model, 256)


def dinov2() -> Model:
    """A gradient step of DINOv2 with two layers, in float32."""
    from transformers import Dinov2Config, FlaxDinov2ForImageClassification

    config = Dinov2Config(
        hidden_size=768,
        num_hidden_layers=2,
        num_attention_heads=12,
        image_size=224,
        patch_size=14,
        num_labels=1024,
    )
    model = FlaxDinov2ForImageClassification(config, _do_init=False)
    return _classifier_step(model, 128)


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
        lambda key: model.init_weights(key, ((1, 8), (1, 224, 224, 3))), random_key()
    )

    def loss(parameters: Tree, ids: jax.Array, images: jax.Array) -> jax.Array:
        scores = model(ids, images, params=parameters).logits_per_text
        return cross_entropy(scores, jnp.arange(scores.shape[0]))

    return trained(loss, weights, integers(512, 64), shapes((512, 3, 224, 224), F32))


def resnet() -> Model:
    """Inference of a residual network of bottlenecks."""
    from transformers import FlaxResNetForImageClassification, ResNetConfig

    config = ResNetConfig(
        embedding_size=64, hidden_sizes=[256, 512, 1024, 2048], depths=[1, 1, 1, 1], num_labels=1024
    )
    model = FlaxResNetForImageClassification(config, _do_init=False, dtype=jnp.bfloat16)
    return _classified(model, 256, "resnet")


def regnet() -> Model:
    """Inference of a RegNet: grouped convolutions, squeezed and excited."""
    from transformers import FlaxRegNetForImageClassification, RegNetConfig

    config = RegNetConfig(
        embedding_size=64,
        hidden_sizes=[256, 512, 1024, 2048],
        depths=[1, 1, 1, 1],
        groups_width=64,
        num_labels=1024,
    )
    model = FlaxRegNetForImageClassification(config, _do_init=False, dtype=jnp.bfloat16)
    return _classified(model, 256, "regnet")


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
    weights = jax.eval_shape(module.init, random_key(), sound)

    def loss(parameters: Tree, sound: jax.Array) -> jax.Array:
        return (module.apply(parameters, sound)[0] ** 2).mean()

    return trained(loss, weights, sound)


def wav2vec2() -> Model:
    """Inference of wav2vec 2.0: convolutions over sound, then one layer of attention."""
    from transformers import FlaxWav2Vec2Model, Wav2Vec2Config

    config = Wav2Vec2Config(
        hidden_size=1024,
        num_hidden_layers=1,
        num_attention_heads=16,
        intermediate_size=4096,
        do_stable_layer_norm=True,
        feat_extract_norm="layer",
        mask_time_prob=0.0,
    )
    model = FlaxWav2Vec2Model(config, _do_init=False)
    weights = _flax_weights(model, (1, 1024))

    def forward(parameters: Tree, sound: jax.Array) -> jax.Array:
        return model(sound, params=parameters)[0]

    return frontends.from_jax(forward, weights, shapes((64, 32000), F32), name="wav2vec2")


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
    weights = jax.eval_shape(model.init_weights, random_key())

    def forward(parameters: Tree, latent: jax.Array, t: jax.Array, text: jax.Array) -> jax.Array:
        return model.apply({"params": parameters}, latent, t, text).sample

    return frontends.from_jax(
        forward,
        weights,
        shapes((64, 4, 32, 32), jnp.bfloat16),
        integers(64),
        shapes((64, 77, 768), jnp.bfloat16),
        name="latent_diffusion",
    )


# -- flax, haiku, optax --------------------------------------------------------------------------
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
    weights = jax.eval_shape(model.init, random_key(), integers(1, 32))

    def loss(parameters: Tree, ids: jax.Array) -> jax.Array:
        return cross_entropy(model.apply(parameters, ids)[:, :-1], ids[:, 1:])

    return trained(loss, weights, integers(256, 32))


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

    return trained(loss, jax.eval_shape(net.init, random_key(), x), x)


def haiku_resnet() -> Model:
    """A gradient step of a residual network of Haiku with four blocks."""
    import haiku as hk

    def forward(images: jax.Array) -> jax.Array:
        net = hk.nets.ResNet((1, 1, 1, 1), 1024, bottleneck=True, resnet_v2=True)
        return net(images, is_training=True)

    net = hk.without_apply_rng(hk.transform_with_state(forward))
    images = shapes((128, 128, 128, 3), F32)
    parameters, state = jax.eval_shape(net.init, random_key(), images)

    def loss(parameters: Tree, state: Tree, images: jax.Array, labels: jax.Array) -> jax.Array:
        logits, _ = net.apply(parameters, state, images)
        return cross_entropy(logits, labels)

    return trained(loss, parameters, state, images, integers(128))


def mobile_net() -> Model:
    """Inference of Haiku's MobileNet: convolutions of one channel each, and products."""
    import haiku as hk

    def forward(images: jax.Array, is_training: bool) -> jax.Array:
        net = hk.nets.MobileNetV1(
            strides=(1, 2, 1, 2), channels=(128, 256, 512, 1024), num_classes=1024
        )
        return net(images, is_training)

    net = hk.without_apply_rng(hk.transform_with_state(forward))
    images = shapes((256, 128, 128, 3), F32)
    start = functools.partial(net.init, is_training=True)
    parameters, state = jax.eval_shape(start, random_key(), images)

    def infer(parameters: Tree, state: Tree, images: jax.Array) -> jax.Array:
        return net.apply(parameters, state, images, is_training=False)[0]

    return frontends.from_jax(infer, parameters, state, images, name="mobile_net")


def muon() -> Model:
    """A training step with Muon of optax, which makes updates orthogonal by products."""
    import optax

    optimizer = optax.contrib.muon(1e-3)
    parameters = shapes({"up": (2048, 8192), "down": (8192, 2048)}, F32)
    state = jax.eval_shape(optimizer.init, parameters)

    def step(parameters: Tree, state: Tree, x: jax.Array, y: jax.Array) -> tuple[Tree, Tree]:
        def loss(weights: Tree) -> jax.Array:
            return ((jax.nn.gelu(x @ weights["up"]) @ weights["down"] - y) ** 2).mean()

        gradients = jax.grad(loss)(parameters)
        updates, after = optimizer.update(gradients, state, parameters)
        return optax.apply_updates(parameters, updates), after

    batch = shapes((8192, 2048), F32)
    return frontends.from_jax(
        step, parameters, state, batch, batch, donate_argnums=(0, 1), name="muon"
    )


PROGRAMS = (
    Program("gpt2", "attention training", gpt2, "transformers"),
    Program("llama", "attention training", llama, "transformers"),
    Program("mistral", "attention training", mistral, "transformers"),
    Program("bert", "attention training", bert, "transformers"),
    Program("bart", "attention training", bart, "transformers"),
    Program("llama_decode", "attention decoding", llama_decode, "transformers"),
    Program("gpt2_decode", "attention decoding", gpt2_decode, "transformers"),
    Program("gemma_decode", "attention decoding", gemma_decode, "transformers"),
    Program("vit", "vision and speech", vit, "transformers"),
    Program("dinov2", "vision and speech", dinov2, "transformers"),
    Program("clip", "vision and speech", clip, "transformers"),
    Program("whisper_encoder", "vision and speech", whisper_encoder, "transformers"),
    Program("wav2vec2", "vision and speech", wav2vec2, "transformers"),
    Program("resnet", "convolution", resnet, "transformers"),
    Program("regnet", "convolution", regnet, "transformers"),
    Program("haiku_resnet", "convolution", haiku_resnet, "dm-haiku"),
    Program("mobile_net", "convolution", mobile_net, "dm-haiku"),
    Program("latent_diffusion", "diffusion", latent_diffusion, "diffusers"),
    Program("flax_lstm", "recurrent", flax_lstm, "flax"),
    Program("haiku_gru", "recurrent", haiku_gru, "dm-haiku"),
    Program("muon", "linear algebra", muon, "optax"),
)
