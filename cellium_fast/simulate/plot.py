"""A figure of a simulation's result, by matplotlib (extra `plot`)."""

from __future__ import annotations

from io import BytesIO
from typing import TYPE_CHECKING

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from cellium_fast.action import Action
from cellium_fast.simulate.report import SimulationResult

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SIZE = (12, 9)      # inches


def drawn(result: SimulationResult) -> bytes:
    """The figure as a PNG file: success and rounds, running agents, effects, posteriors."""
    figure = Figure(figsize=SIZE, layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(
        f"{result.sessions:,} agents, at most {result.round_limit} rounds each, seed {result.seed}"
    )
    (success, running), (effects, posterior) = figure.subplots(2, 2)
    _draw_success(success, result)
    _draw_running(running, result)
    _draw_effects(effects, result)
    _draw_posterior(posterior, result)
    file = BytesIO()
    figure.savefig(file, format="png", dpi=120)
    return file.getvalue()


def _draw_success(axes: Axes, result: SimulationResult) -> None:
    for name, control in result.controls.items():
        success, rounds = control.figures.success, control.figures.rounds
        axes.errorbar(
            rounds.mean, success.mean, fmt="o", label=name, capsize=3,
            xerr=rounds.high - rounds.mean, yerr=success.high - success.mean,
        )
    axes.plot(
        result.best.rounds.mean, result.best.success.mean, "k*", markersize=12,
        label="best fixed action per state",
    )
    axes.set(title="Success and rounds (95 % intervals)", xlabel="rounds a run", ylabel="success")
    axes.legend(fontsize="small")


def _draw_running(axes: Axes, result: SimulationResult) -> None:
    for name, control in result.controls.items():
        axes.step(range(1, len(control.running) + 1), control.running, where="mid", label=name)
    axes.set(title="Agents that play a round", xlabel="round", ylabel="agents")
    axes.legend(fontsize="small")


def _draw_effects(axes: Axes, result: SimulationResult) -> None:
    names = [name for name in result if result[name].interventions.count]
    for place, name in enumerate(names):
        effect = result[name].interventions
        axes.barh(place, effect.helped, color="tab:green")
        axes.barh(place, -effect.hurt, color="tab:red")
    axes.axvline(0, color="black", linewidth=0.8)
    axes.set_yticks(range(len(names)), names)
    axes.set(title="Interventions that helped (right) and hurt (left)", xlabel="interventions")


def _draw_posterior(axes: Axes, result: SimulationResult) -> None:
    """The mean of each arm over the rounds, of the last control that learns."""
    learning = [(name, one.posterior) for name, one in result.controls.items() if one.posterior]
    axes.set(title="Posterior mean by action", xlabel="round", ylabel="mean")
    if not learning:
        return
    name, posterior = learning[-1]
    axes.set_title(f"Posterior mean by action, {name}")
    for action in map(str, Action):
        arms = [row[action] for row in posterior]
        axes.plot([alpha / (alpha + beta) for alpha, beta in arms], label=action)
    axes.legend(fontsize="small")
