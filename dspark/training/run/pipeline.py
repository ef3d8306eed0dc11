"""Runs the stages of `dspark train`: answers, hidden states, steps, export, evaluation."""

import dataclasses
import hashlib
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from draft import DSparkConfig, DSparkNetwork
from draft.atomic_write import write_text
from dspark.bench.draft_quality.accept_lengths import AcceptLengths, measure_accept_lengths
from dspark.bench.workloads.prompts import EncodedPrompt
from dspark.bench.workloads.trial import Workload
from dspark.gguf.progress import Progress
from dspark.training.config import TrainingConfig
from dspark.training.data.answers import AnswerFile, Variant, count_missing, generate_answers
from dspark.training.data.examples import Examples, TokenSequence
from dspark.training.data.hidden_state_source import HiddenStateSource
from dspark.training.data.own_prompts import UserTurn
from dspark.training.data.prompts import TrainingPrompt
from dspark.training.data.turn_generator import TurnGenerator
from dspark.training.errors import TrainingError
from dspark.training.model.compiling import compile_forward
from dspark.training.model.export import export_draft
from dspark.training.model.forward import ForwardBlocks, forward_blocks
from dspark.training.model.start_network import (
    Start,
    build_network,
    logit_cap_of,
    tap_layers_of,
)
from dspark.training.run.model_card import TrainingData, model_card
from dspark.training.run.recipe import Recipe
from dspark.training.run.stages import timed_stage
from dspark.training.run.start_choice import choose_start
from dspark.training.run.trainer import peak_bytes, trial_batch
from dspark.training.run.training_loop import TrainingLoop, TrainingResult
from engine.api import EngineSamplingParams
from engine.build import wire_engine
from engine.config import EngineConfig
from engine.errors import LoadError
from engine.loading import fingerprint
from engine.loading.draft import load_draft
from engine.loading.target import by_transformers_alone, fastest_attention, load_target
from engine.model_setup.memory_plan import GIB
from engine.platform.auto_settings import configure_threads, resolve_device, resolve_dtype
from engine.platform.device_timer import seconds_of

logger = logging.getLogger(__name__)

_BLOCK_ROOM = 64  # tokens; more than the block of any draft
_EVALUATION_TOKENS = 96


@dataclass(frozen=True, slots=True)
class TrainingOutcome:
    """The result of a training and where it is."""

    folder: Path  # of the draft
    result: TrainingResult
    lengths: AcceptLengths | None  # of held-out prompts; None without evaluation or prompts


class Training:
    """One training in its folder, new or resumed."""

    def __init__(self, config: TrainingConfig, *, progress: Progress) -> None:
        """Loads the target. Raises LoadError for an unsupported one."""
        self._config = config
        self._progress = progress
        self._recipe = Recipe(**config.recipe)
        self._engine_config = EngineConfig(
            target=config.target,
            target_revision=config.revision,
            dtype=config.dtype,
            device=config.device,
            trust_remote_code=config.trust_remote_code,
            max_model_len=config.max_tokens + _BLOCK_ROOM,
            max_running_requests=config.answers.concurrency,
            num_threads=config.num_threads,
        )
        self._device = resolve_device(self._engine_config)
        configure_threads(self._engine_config, self._device)
        self._target = load_target(
            config.target,
            revision=config.revision,
            dtype=resolve_dtype(self._engine_config, self._device),
            device=self._device,
            trust_remote_code=config.trust_remote_code,
            max_model_len=self._engine_config.max_model_len,
        )
        name = fingerprint.target_fingerprint(self._target)
        if name is None:
            raise LoadError("model.path: found a quantised target; accepted: plain weights")
        self._fingerprint = name

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the target."""
        return self._fingerprint

    def turn_generator(self, turn: UserTurn) -> TurnGenerator:
        """Build an engine that generates users' turns. Raises LoadError."""
        built = wire_engine(
            self._engine_config, target=self._target, draft=None, device=self._device
        )
        return TurnGenerator(
            engine=built.engine,
            turn=turn,
            config=self._config.own_prompts,
            concurrency=self._config.answers.concurrency,
        )

    def run(self, prompts: Sequence[TrainingPrompt]) -> TrainingOutcome:
        """Run all stages from answers to the model card.

        Raises LoadError for invalid input, and OSError if the disk is full.
        """
        try:
            return self._run(prompts)
        except TrainingError as error:
            raise LoadError(str(error)) from error

    def _run(self, prompts: Sequence[TrainingPrompt]) -> TrainingOutcome:
        config, target = self._config, self._target
        prompts = self._fitting(prompts)
        file = AnswerFile(path=config.output / "answers.jsonl", target=self._fingerprint)
        states = HiddenStateSource(
            target=target,
            fingerprint=self._fingerprint,
            tap_layers=tap_layers_of(config, target),
            config=config.features,
            folder=config.output / "features",
            device=self._device,
            logit_cap=logit_cap_of(config, target),
        )
        with timed_stage("answers"):
            self._answer(prompts, file, states)
        train, held_out = self._split(prompts, file)
        with by_transformers_alone(target.model, fastest_attention(target.model)):
            network, result = self._train(train, held_out, states)
        folder = config.output / "draft"
        export_draft(
            network,
            folder,
            more={fingerprint.FIELD: self._fingerprint, "num_anchors": self._recipe.num_anchors},
            num_target_layers=target.num_layers,
        )
        with timed_stage("evaluation"):
            lengths = self._evaluate(folder, [p for p in prompts if p.is_held_out])
        data = TrainingData(
            sets=_counts(prompts),
            num_sequences=len(train),
            num_answer_tokens=sum(len(s.token_ids) - s.num_prompt_tokens for s in train),
            num_held_out=len(held_out),
            mask_token_id=network.config.mask_token_id,
        )
        card = model_card(
            target=config.target_name or Path(config.target).name,
            fingerprint=self._fingerprint,
            config=network.config,
            num_parameters=_num_trained(network),
            recipe=self._recipe,
            own_prompts=config.own_prompts,
            answers=config.answers,
            data=data,
            result=result,
            lengths=lengths,
        )
        write_text(folder / "README.md", card)
        return TrainingOutcome(folder, result, lengths)

    @property
    def _prompt_room(self) -> int:
        """Longest prompt that leaves room for its answer, in tokens."""
        return self._config.max_tokens - self._config.answers.max_new_tokens

    def _fitting(self, prompts: Sequence[TrainingPrompt]) -> list[TrainingPrompt]:
        fitting = [prompt for prompt in prompts if len(prompt.token_ids) <= self._prompt_room]
        if not any(prompt.is_held_out for prompt in fitting):
            logger.warning(
                "none of %d prompts is held out, so the draft is not evaluated; a larger "
                "data.held_out, or more prompts, would hold some out",
                len(fitting),
            )
        return fitting

    def _split(
        self, prompts: Sequence[TrainingPrompt], file: AnswerFile
    ) -> tuple[list[TokenSequence], list[TokenSequence]]:
        """Return training and held-out sequences. Raises LoadError without any of the former."""
        train = self._sequences([p for p in prompts if not p.is_held_out], file)
        held_out = self._sequences([p for p in prompts if p.is_held_out], file)
        if not train:
            raise LoadError(
                f"data.prompts: no sequence to train on: {len(prompts)} prompts have at most "
                f"{self._prompt_room} tokens, and no answer to one that is not held out has "
                f"answers.min_tokens, {self._config.answers.min_tokens}; accepted: at least one"
            )
        return train, held_out[: self._config.learning.validation_sequences]

    def _answer(
        self, prompts: Sequence[TrainingPrompt], file: AnswerFile, states: HiddenStateSource
    ) -> None:
        """Generate the missing answers, if any.

        An engine without a draft records hidden states; it runs without a prefix cache, whose
        rows are not computed.
        """
        config = self._config.answers
        if not count_missing(prompts, config, file):
            return
        pair = dataclasses.replace(self._engine_config, draft=config.draft_model)
        draft = load_draft(pair, self._target, self._device) if pair.draft is not None else None
        recorder = None if draft else states.recorder(min_answer_tokens=config.min_tokens)
        built = wire_engine(
            dataclasses.replace(pair, prefix_cache=recorder is None),
            target=self._target,
            draft=draft,
            device=self._device,
            observer=recorder,
            tap_layers=states.engine_taps if recorder is not None else None,
        )
        self._progress.start("answers", total=len(prompts) * len(config.temperatures))
        generate_answers(built.engine, prompts, config, file, report=self._progress.update)
        states.flush()
        if recorder is not None:
            logger.info(
                "hidden states stored=%d skipped=%d", recorder.num_stored, recorder.num_skipped
            )

    def _sequences(
        self, prompts: Sequence[TrainingPrompt], file: AnswerFile
    ) -> list[TokenSequence]:
        """Return prompts with their answers, without answers below min_tokens."""
        config = self._config.answers
        found = [file.find(p, v) for p in prompts for v in Variant.all_of(config)]
        return [
            TokenSequence(answer.prompt_ids + answer.answer_ids, len(answer.prompt_ids))
            for answer in found
            if answer is not None and len(answer.answer_ids) >= config.min_tokens
        ]

    def _train(
        self,
        train: Sequence[TokenSequence],
        held_out: Sequence[TokenSequence],
        states: HiddenStateSource,
    ) -> tuple[DSparkNetwork, TrainingResult]:
        config = self._config

        def build(start: Start) -> DSparkNetwork:
            return build_network(
                config,
                self._target,
                [*train, *held_out],
                start=start,
                seed=self._recipe.seed,
                device=self._device,
            )

        configured = config.learning.start
        start: Start = "scratch" if configured == "auto" else configured
        network = build(start)  # refuses a wrong design before the next stage
        with timed_stage("hidden states"):
            training_set, validation_set = states.examples(train, held_out, self._progress)
        identity = self._identity(network.config, train)
        if configured == "auto":
            self._progress.start("comparing two starts", total=None)
            with timed_stage("start"):
                start = choose_start(
                    build,
                    training_set,
                    self._recipe,
                    folder=config.output,
                    identity=identity,
                    device=self._device,
                )
            network = build(start)
        loop = TrainingLoop(
            network=network,
            examples=training_set,
            held_out=validation_set,
            recipe=self._recipe,
            config=config.learning,
            folder=config.output,
            identity={**identity, "training.start": start},
            device=self._device,
            forward=self._forward_blocks(network, training_set),
        )
        longest = max(len(sequence.token_ids) for sequence in train)
        logger.info(
            "sequences=%d steps=%d trained_parameters=%d estimated_peak_gib=%.2f",
            len(train),
            loop.num_steps,
            _num_trained(network),
            peak_bytes(network, self._recipe, longest=longest) / GIB,
        )
        self._progress.start("training steps", total=loop.num_steps)
        with timed_stage("training"):
            return network, loop.run(self._progress.update)

    def _forward_blocks(self, network: DSparkNetwork, examples: Examples) -> ForwardBlocks:
        """Return the forward pass, compiled if configured and possible."""
        mode, device = self._config.learning.compile, self._device
        if mode == "off" or (mode == "auto" and device.type != "cuda"):
            return forward_blocks
        trial = trial_batch(examples, self._recipe, block_size=network.config.block_size)
        return compile_forward(
            network,
            trial.to(device),
            autocast=self._recipe.autocast,
            stopwatch=partial(seconds_of, device=device) if mode == "auto" else None,
        )

    def _identity(
        self, draft: DSparkConfig, train: Sequence[TokenSequence]
    ) -> Mapping[str, object]:
        """Return the values that must be equal when a training resumes, but for its start."""
        texts = repr([(s.token_ids, s.num_prompt_tokens) for s in train]).encode()
        recipe = {f"training.{k}": v for k, v in dataclasses.asdict(self._recipe).items()}
        design = {f"design.{k}": repr(v) for k, v in dataclasses.asdict(draft).items()}
        return {
            fingerprint.FIELD: self._fingerprint,
            "training data": hashlib.sha256(texts).hexdigest()[:16],
            **recipe,
            **design,
        }

    def _evaluate(self, folder: Path, prompts: Sequence[TrainingPrompt]) -> AcceptLengths | None:
        """Measure accept lengths on held-out prompts, greedy and at temperature 1."""
        limit = self._config.evaluation_prompts
        chosen: list[EncodedPrompt] = []
        for name in dict.fromkeys(prompt.prompt_set for prompt in prompts):
            of_set = [p for p in prompts if p.prompt_set == name][:limit]
            chosen += [EncodedPrompt(name, prompt.token_ids) for prompt in of_set]
        if not chosen:
            return None
        pair = dataclasses.replace(
            self._engine_config, draft=str(folder), draft_budget="always", lookup="off"
        )
        draft = load_draft(pair, self._target, self._device)
        built = wire_engine(pair, target=self._target, draft=draft, device=self._device)
        max_new_tokens = min(_EVALUATION_TOKENS, self._config.answers.max_new_tokens)
        workload = Workload(tuple(chosen), EngineSamplingParams(max_new_tokens, seed=0), 1)
        self._progress.start("accept lengths of held-out prompts", total=None)
        return measure_accept_lengths(
            built, workload, temperatures=(0.0, 1.0), report=lambda label: None
        )


def _num_trained(network: DSparkNetwork) -> int:
    return sum(p.numel() for p in network.parameters() if p.requires_grad)


def _counts(prompts: Sequence[TrainingPrompt]) -> dict[str, int]:
    return dict(Counter(prompt.prompt_set for prompt in prompts))
