"""Programs of the sciences in the corpus that others wrote: packages of PyPI, with sizes cut.

Graphs, differential equations, optimisation, tree search, transport, statistics, molecules, images.
Each function imports its package when it is called (``requirements.txt``).
"""

# Packages that type checkers do not know are imported where they are used.
# mypy: ignore-errors
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from evaluation.corpus.own_programs import F32, Tree, cross_entropy, gradient_step, trained
from evaluation.corpus.program import Program, integers, random_key, shapes
from toast_lab import frontends
from toast_lab.ir.model import Model


# -- graphs ---------------------------------------------------------------------------------------
def _graph(
    nodes: jax.Array, edges: jax.Array | None, senders: jax.Array, receivers: jax.Array
) -> Any:
    """One graph for jraph: what its nodes and edges have, and what each edge leads from and to."""
    import jraph

    return jraph.GraphsTuple(
        nodes=nodes,
        edges=edges,
        senders=senders,
        receivers=receivers,
        globals=None,
        n_node=jnp.array([nodes.shape[0]]),
        n_edge=jnp.array([senders.shape[0]]),
    )


def jraph_network() -> Model:
    """A gradient step of a graph network of jraph."""
    import jraph

    nodes, edges, size = 16384, 131072, 256

    def update(layers: Tree, *parts: jax.Array) -> jax.Array:
        x = jnp.concatenate([part for part in parts if part is not None], -1)
        return jax.nn.relu(x @ layers[0]) @ layers[1]

    def loss(parameters: Tree, features: Tree, senders: jax.Array, receivers: jax.Array) -> Any:
        graph = _graph(features[0], features[1], senders, receivers)
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
    return trained(
        loss, shapes(parameters, F32), shapes(features, F32), integers(edges), integers(edges)
    )


def graph_attention() -> Model:
    """A gradient step of a graph attention layer of jraph."""
    import jraph

    nodes, edges, inputs, size = 32768, 262144, 512, 512

    def loss(parameters: Tree, x: jax.Array, senders: jax.Array, receivers: jax.Array) -> Any:
        graph = _graph(x, None, senders, receivers)
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
        loss,
        shapes(parameters, F32),
        shapes((nodes, inputs), F32),
        integers(edges),
        integers(edges),
    )


def graph_convolution() -> Model:
    """A gradient step of two graph convolutions of jraph."""
    import jraph

    nodes, edges, size = 65536, 262144, 256

    def loss(parameters: Tree, x: jax.Array, senders: jax.Array, receivers: jax.Array) -> Any:
        graph = _graph(x, None, senders, receivers)
        for weights in parameters:
            net = jraph.GraphConvolution(lambda n, w=weights: jax.nn.relu(n @ w))
            graph = net(graph)
        return (graph.nodes**2).mean()

    return trained(
        loss,
        shapes([(size, size), (size, size)], F32),
        shapes((nodes, size), F32),
        integers(edges),
        integers(edges),
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
            2, 32, 32, hidden_channels=64, num_modes=16, num_blocks=2, key=random_key()
        ),
        fields,
        fields,
    )


def equinox_unet() -> Model:
    """A gradient step of a U-Net for fields."""
    import pdequinox

    fields = shapes((64, 4, 64, 64), F32)
    return _equinox_step(
        lambda: pdequinox.arch.ClassicUNet(
            2, 4, 4, hidden_channels=128, num_levels=2, key=random_key()
        ),
        fields,
        fields,
    )


def dilated_network() -> Model:
    """A gradient step of a dilated residual network of pdequinox in one dim."""
    import pdequinox

    fields = shapes((256, 2, 1024), F32)
    return _equinox_step(
        lambda: pdequinox.arch.DilatedResNet(
            1, 2, 2, hidden_channels=128, num_blocks=1, key=random_key()
        ),
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


def advection() -> Model:
    """A gradient step through ten steps of a solver of exponax in one dim, for a batch."""
    import exponax as ex

    stepper = ex.stepper.KuramotoSivashinsky(1, 60.0, 2048, 0.1)

    def loss(fields: jax.Array, after: jax.Array) -> jax.Array:
        return ((jax.vmap(ex.repeat(stepper, 5))(fields) - after) ** 2).mean()

    fields = shapes((1024, 1, 2048), F32)
    return trained(loss, fields, fields)


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


def neural_sde() -> Model:
    """Eight Euler steps of a stochastic differential equation of diffrax, for many paths."""
    import diffrax

    size, hidden, paths = 256, 2048, 8192

    def simulate(parameters: Tree, start: jax.Array, key: jax.Array) -> jax.Array:
        def drift(t: jax.Array, y: jax.Array, weights: Tree) -> jax.Array:
            return jax.nn.silu(y @ weights["up"]) @ weights["down"]

        def noise(t: jax.Array, y: jax.Array, weights: Tree) -> jax.Array:
            return jax.nn.sigmoid(y @ weights["noise"])

        path = diffrax.UnsafeBrownianPath(
            jax.ShapeDtypeStruct((paths, size), F32), key, diffrax.BrownianIncrement
        )
        terms = diffrax.MultiTerm(
            diffrax.ODETerm(drift),
            diffrax.WeaklyDiagonalControlTerm(noise, path),
        )
        return diffrax.diffeqsolve(
            terms,
            diffrax.Euler(),
            0.0,
            1.0,
            0.125,
            start,
            parameters,
            stepsize_controller=diffrax.ConstantStepSize(),
            saveat=diffrax.SaveAt(t1=True),
            max_steps=8,
            throw=False,
            adjoint=diffrax.DirectAdjoint(),
        ).ys[-1]

    parameters = {"up": (size, hidden), "down": (hidden, size), "noise": (size, size)}
    return frontends.from_jax(
        simulate,
        shapes(parameters, F32),
        shapes((paths, size), F32),
        jax.ShapeDtypeStruct((2,), jnp.uint32),
        name="neural_sde",
    )


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
        solve,
        shapes((2048, 1024), F32),
        shapes((65536, 2048), F32),
        integers(65536),
        name="descent",
    )


def least_squares() -> Model:
    """Three steps of Levenberg-Marquardt of optimistix, by conjugate gradients of lineax."""
    import lineax
    import optimistix

    def residual(w: jax.Array, batch: tuple[jax.Array, jax.Array]) -> jax.Array:
        x, y = batch
        return jnp.tanh(x @ w) - y

    def fit(w: jax.Array, x: jax.Array, y: jax.Array) -> jax.Array:
        solver = optimistix.GaussNewton(
            rtol=1e-3,
            atol=1e-3,
            linear_solver=lineax.NormalCG(rtol=1e-3, atol=1e-3, max_steps=5),
        )
        return optimistix.least_squares(
            residual,
            solver,
            w,
            (x, y),
            max_steps=3,
            throw=False,
            adjoint=optimistix.RecursiveCheckpointAdjoint(),
        ).value

    return frontends.from_jax(
        fit,
        shapes((2048, 64), F32),
        shapes((16384, 2048), F32),
        shapes((16384, 64), F32),
        name="least_squares",
    )


# -- tree search, transport, sampling -------------------------------------------------------------
def _heads(size: int, actions: int) -> dict[str, tuple[int, int]]:
    """What a model of a game reads off its state."""
    return {"reward": (size, 1), "value": (size, 1), "policy": (size, actions)}


def _judged(parameters: Tree, state: jax.Array) -> dict[str, jax.Array]:
    """What mctx asks of every state."""
    return {
        "prior_logits": state @ parameters["policy"],
        "value": (state @ parameters["value"])[:, 0],
    }


def _acting(act: Callable[..., jax.Array], parameters: Tree, states: Any, name: str) -> Model:
    """A search from a batch of states, with a key."""
    key = jax.ShapeDtypeStruct((2,), jnp.uint32)
    return frontends.from_jax(act, shapes(parameters, F32), key, states, name=name)


def tree_search() -> Model:
    """Eight simulations of mctx with a learned model of the game."""
    import mctx

    batch, size, actions = 1024, 1024, 64

    def recurrent(parameters: Tree, key: jax.Array, action: jax.Array, state: jax.Array) -> Any:
        state = jax.nn.relu(state @ parameters["inner"] + parameters["action"][action])
        output = mctx.RecurrentFnOutput(
            reward=(state @ parameters["reward"])[:, 0],
            discount=jnp.ones((batch,)),
            **_judged(parameters, state),
        )
        return output, state

    def act(parameters: Tree, key: jax.Array, observed: jax.Array) -> jax.Array:
        state = jax.nn.relu(observed @ parameters["inner"])
        root = mctx.RootFnOutput(
            **_judged(parameters, state),
            embedding=state,
        )
        return mctx.muzero_policy(
            parameters, key, root, recurrent, num_simulations=8, max_depth=4
        ).action_weights

    parameters = {
        "inner": (size, size),
        "action": (actions, size),
        **_heads(size, actions),
    }
    return _acting(act, parameters, shapes((batch, size), F32), "tree_search")


def gumbel_search() -> Model:
    """Sixteen simulations of Gumbel MuZero of mctx with a model of two layers."""
    import mctx

    batch, size, actions = 2048, 512, 32

    def recurrent(parameters: Tree, key: jax.Array, action: jax.Array, state: jax.Array) -> Any:
        hidden = jax.nn.relu(state @ parameters["up"] + parameters["action"][action])
        state = jnp.tanh(hidden @ parameters["down"])
        output = mctx.RecurrentFnOutput(
            reward=(state @ parameters["reward"])[:, 0],
            discount=jnp.full((batch,), 0.99),
            **_judged(parameters, state),
        )
        return output, state

    def act(parameters: Tree, key: jax.Array, state: jax.Array) -> jax.Array:
        root = mctx.RootFnOutput(
            **_judged(parameters, state),
            embedding=state,
        )
        return mctx.gumbel_muzero_policy(
            parameters, key, root, recurrent, num_simulations=16, max_num_considered_actions=8
        ).action_weights

    parameters = {
        "up": (size, 4 * size),
        "down": (4 * size, size),
        "action": (actions, 4 * size),
        **_heads(size, actions),
    }
    return _acting(act, parameters, shapes((batch, size), F32), "gumbel_search")


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
            random_key(),
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


def mixed_effects() -> Model:
    """Log density and gradient of a hierarchical regression of numpyro."""
    import numpyro
    import numpyro.distributions as dist
    from numpyro.infer.util import log_density

    rows, columns, groups = 262144, 256, 4096

    def model(x: jax.Array, group: jax.Array, y: jax.Array) -> None:
        scale = numpyro.sample("scale", dist.HalfNormal(1.0))
        with numpyro.plate("groups", groups):
            offset = numpyro.sample("offset", dist.Normal(0.0, scale))
        with numpyro.plate("columns", columns):
            slope = numpyro.sample("slope", dist.Normal(0.0, 1.0))
        with numpyro.plate("rows", rows):
            numpyro.sample("y", dist.StudentT(5.0, x @ slope + offset[group], 1.0), obs=y)

    def loss(parameters: Tree, x: jax.Array, group: jax.Array, y: jax.Array) -> jax.Array:
        return -log_density(model, (x, group, y), {}, parameters)[0] / rows

    parameters = {"scale": (), "offset": (groups,), "slope": (columns,)}
    return trained(
        loss,
        shapes(parameters, F32),
        shapes((rows, columns), F32),
        integers(rows),
        shapes((rows,), F32),
    )


# -- molecules, images ----------------------------------------------------------------------------
def equivariant() -> Model:
    """A gradient step of a layer of e3nn: tensor products of features with directions."""
    import e3nn_jax

    edges, channels = 32768, 64
    features = e3nn_jax.Irreps(f"{channels}x0e + {channels}x1o")

    def loss(parameters: Tree, x: jax.Array, directions: jax.Array) -> jax.Array:
        harmonics = e3nn_jax.spherical_harmonics("0e + 1o + 2e", directions, normalize=True)
        product = e3nn_jax.tensor_product(e3nn_jax.IrrepsArray(features, x), harmonics)
        product = product.filter(["0e", "1o"])
        linear = e3nn_jax.FunctionalLinear(product.irreps, features)
        weights = linear.split_weights(parameters)
        mixed = jax.vmap(lambda edge: linear(weights, edge).array)(product)
        return (mixed**2).mean()

    with jax.ensure_compile_time_eval():
        product = e3nn_jax.tensor_product(features, e3nn_jax.Irreps("0e + 1o + 2e"))
        linear = e3nn_jax.FunctionalLinear(product.filter(["0e", "1o"]), features)
    return trained(
        loss,
        shapes((int(linear.num_weights),), F32),
        shapes((edges, features.dim), F32),
        shapes((edges, 3), F32),
    )


def lennard_jones() -> Model:
    """Energy and forces of 8,192 particles of jax-md, all pairs, and a step of their motion."""
    from jax_md import energy, space

    displacement, shift = space.periodic(32.0)
    pairs = energy.soft_sphere_pair(displacement, sigma=1.0, epsilon=1.0)

    def step(positions: jax.Array, velocities: jax.Array) -> tuple[jax.Array, jax.Array]:
        force = -jax.grad(pairs)(positions)
        velocities = velocities + 1e-3 * force
        return shift(positions, 1e-3 * velocities), velocities

    cloud = shapes((8192, 3), F32)
    return frontends.from_jax(step, cloud, cloud, name="lennard_jones")


def augment() -> Model:
    """Images made to vary by dm-pix: blurred, of another hue and contrast, flipped."""
    import dm_pix

    def vary(images: jax.Array) -> jax.Array:
        images = dm_pix.adjust_hue(images, 0.1)
        images = dm_pix.adjust_saturation(images, 1.2)
        images = dm_pix.adjust_contrast(images, 0.9)
        images = dm_pix.gaussian_blur(images, sigma=2.0, kernel_size=9.0)
        return dm_pix.flip_left_right(images)

    return frontends.from_jax(vary, shapes((256, 192, 192, 3), F32), name="augment")


PROGRAMS = (
    Program("equinox_unet", "U-Net", equinox_unet, "pdequinox"),
    Program("dilated_network", "convolution", dilated_network, "pdequinox"),
    Program("jraph_network", "graph", jraph_network, "jraph"),
    Program("graph_attention", "graph", graph_attention, "jraph"),
    Program("graph_convolution", "graph", graph_convolution, "jraph"),
    Program("fourier_operator", "Fourier", fourier_operator, "pdequinox"),
    Program("spectral_solver", "Fourier", spectral_solver, "exponax"),
    Program("advection", "Fourier", advection, "exponax"),
    Program("neural_ode", "implicit and ODE", neural_ode, "diffrax"),
    Program("neural_sde", "implicit and ODE", neural_sde, "diffrax"),
    Program("descent", "linear algebra", descent, "jaxopt"),
    Program("least_squares", "linear algebra", least_squares, "optimistix"),
    Program("tree_search", "tree search", tree_search, "mctx"),
    Program("gumbel_search", "tree search", gumbel_search, "mctx"),
    Program("sinkhorn", "linear algebra", sinkhorn, "ott-jax"),
    Program("normalizing_flow", "probabilistic", normalizing_flow, "flowjax"),
    Program("hamiltonian", "probabilistic", hamiltonian, "blackjax"),
    Program("augment", "vision and speech", augment, "dm-pix"),
    Program("lennard_jones", "molecules", lennard_jones, "jax-md"),
    Program("equivariant", "molecules", equivariant, "e3nn-jax"),
    Program("mixed_effects", "probabilistic", mixed_effects, "numpyro"),
)
