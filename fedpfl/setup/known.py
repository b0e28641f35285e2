"""Types of all settings for editors, and their limits for a check that needs no torch.

Written by `fedpfl config --update`.
"""

# ruff: noqa: E501
# fmt: off

from __future__ import annotations

from typing import Any, Callable, Literal, Mapping, Sequence, TypedDict, Union

FunctionsOrNames = Union[str, Callable[..., Any], Sequence[Union[str, Callable[..., Any]]]]


class CommonSettings(TypedDict, total=False):
    """Settings that `fedpfl.run`, `fedpfl.compare` and `fedpfl.sweep` take."""

    client_models: str
    num_server_rounds: int
    fraction_train: float
    personal_head: bool
    new_clients: float
    initial_weights: str
    evaluate_every: int
    test_at: Literal["end", "start"]
    early_stop: int
    metrics: FunctionsOrNames
    choose_by: str
    evaluate_global: bool
    evaluate_trained: bool
    diagnostics: bool
    state_dir: str
    device_models: Literal["auto", "always", "never"]
    device_model_every: int
    device_models_kept: int
    personalise: Literal["none", "local-train", "fine-tune"]
    missed_timeout: float
    wire_dtype: Literal["float32", "float16"]
    node_timeout: float
    round_timeout: float
    check_after: float
    min_clients: int
    max_client_samples: int
    schedule: Literal["synchronous", "buffered"]
    buffer_size: int
    over_selection: float
    round_deadline: float
    round_deadline_pace: float
    replay: str
    new_nodes: Literal["ignore", "join"]
    forget_after: int
    min_replies: int
    tracker: Literal["none", "wandb", "mlflow"]
    tracker_project: str
    listeners: str
    trainable: str
    lora_rank: int
    lora_alpha: float
    lora_targets: str
    download_weights: bool
    data_dir: str
    normalize: Literal["half", "cifar-100"]
    standardize: Literal["none", "client", "all"]
    impute: Literal["refuse", "mean"]
    image_size: int
    text_step: int
    label_column: str
    client_column: str
    split_column: str
    ignore_columns: str
    class_names: str
    window_column: str
    window_length: int
    window_step: int
    num_classes: int
    partitioner: Literal["auto", "iid", "dirichlet", "dirichlet-client", "pathological", "natural", "domains", "pfllib-dirichlet", "pfllib-pathological"]
    division_file: str
    partition_seed: int
    dirichlet_alpha: float
    classes_per_client: int
    train_samples: int
    test_samples: int
    split: Literal["mixed", "given"]
    test_fraction: float
    test_on: Literal["own", "all"]
    validation_fraction: float
    min_samples: int
    permute_labels: bool
    local_epochs: int
    batch_size: int
    last_batch: Literal["drop", "keep", "even"]
    loss: Literal["cross-entropy", "mse", "multi-label"]
    batch_loss: Literal["mean", "sum"]
    label_smoothing: float
    class_weights: Literal["none", "balanced"]
    augmentation: FunctionsOrNames
    local_steps: int
    optimizer: str
    learning_rate: float
    learning_rate_schedule: Literal["constant", "step", "exponential", "cosine"]
    learning_rate_over: Literal["rounds", "steps"]
    learning_rate_decay: float
    learning_rate_decay_every: int
    learning_rate_warm_up: int
    clip_norm: float
    momentum: float
    keep_momentum: bool
    weight_decay: float
    tune_epochs: int
    device: Literal["cpu", "cuda"]
    precision: Literal["float32", "bf16"]
    threads: int
    server_optimizer: Literal["none", "momentum", "adam", "yogi"]
    server_learning_rate: float
    server_momentum: float
    server_beta2: float
    server_tau: float
    update_norm_limit: float
    robust_aggregation: Literal["none", "clip", "median", "trimmed-mean", "krum"]
    robust_clip: float
    robust_false_share: float
    krum_clients: int
    max_weight_share: float
    dp_noise_multiplier: float
    dp_clip_norm: float
    dp_delta: float
    dp_where: Literal["client", "server"]
    dp_reproducible: bool
    apfl_alpha: float
    apfl_adaptive: bool
    clustered_fl_epsilon1: float
    clustered_fl_epsilon2: float
    clustered_fl_weights: Literal["examples", "uniform"]
    clustered_fl_linkage: Literal["complete", "single"]
    clustered_fl_first_split: int
    clustered_fl_smallest_split: int
    ditto_pull: float
    ditto_p_epochs: int
    factorized_fl_l1: float
    factorized_fl_penalty: Literal["gradient", "threshold"]
    factorized_fl_mu: bool
    factorized_fl_threshold: float
    factorized_fl_scaling: float
    factorized_fl_min_aggregate: int
    factorized_fl_matching: Literal["similar", "random", "worst"]
    factorized_fl_classifier: Literal["personal", "shared"]
    factorized_fl_test: Literal["received", "trained"]
    factorized_fl_plus_l1: float
    factorized_fl_plus_penalty: Literal["gradient", "threshold"]
    factorized_fl_plus_mu: bool
    factorized_fl_plus_threshold: float
    factorized_fl_plus_scaling: float
    factorized_fl_plus_min_aggregate: int
    factorized_fl_plus_matching: Literal["similar", "random", "worst"]
    factorized_fl_plus_classifier: Literal["personal", "shared"]
    factorized_fl_plus_test: Literal["received", "trained"]
    fedala_layers: int
    fedala_samples: float
    fedala_weight_learning_rate: float
    fedala_epochs: int
    fedala_first_epochs: int
    fedamp_alpha: float
    fedamp_sigma: float
    fedamp_prox: float
    fedas_alignment_epochs: int
    fedas_alignment_learning_rate: float
    fedavg_weights: Literal["examples", "uniform"]
    fedavg_share_buffers: bool
    fedbabu_head_layers: int
    fedbabu_tuning_epochs: int
    fedbabu_tune: Literal["head", "everything"]
    fedcac_share: float
    fedcac_beta: float
    fedcp_alignment: float
    feddbe_kappa: float
    feddbe_momentum: float
    feddecomp_rank_conv: float
    feddecomp_rank_linear: float
    feddecomp_lora_epochs: int
    feddecomp_init: Literal["paper", "code"]
    feddecomp_variant: Literal["alternating", "reverse", "tau-only", "simultaneous", "all-shared", "all-local"]
    feddecomp_absent_clients: Literal["skip", "last"]
    feddecomp_lora_moves_statistics: bool
    feddyn_alpha: float
    fedem_components: int
    fedfac_layers: str
    fedfac_splits: Literal["channel", "weight"]
    fedfac_share_buffers: bool
    fedfac_server_step: float
    fedfac_variant: Literal["static", "dynamic"]
    fedfac_kappa: str
    fedfac_tau: str
    fedfac_factor: Literal["principal-axis", "eigenvector"]
    fedfac_tolerance: float
    fedfac_max_iterations: int
    fedfac_update: Literal["weights", "difference"]
    fedfac_mask: Literal["none", "shared", "personal"]
    fedfac_pre_rounds: int
    fedfomo_models: int
    fedfomo_validation: float
    fedfomo_epsilon: float
    fedfomo_epsilon_decay: float
    fedfomo_baseline: Literal["before-training", "trained"]
    fedgh_server_learning_rate: float
    fedgh_server_epochs: int
    fedgh_server_batch_size: int
    fedpac_alignment: float
    fedpac_p_epochs: int
    fedpac_combine: bool
    fedper_head_layers: int
    fedproto_pull: float
    fedproto_predict: Literal["model", "prototype"]
    fedprox_mu: float
    fedreg_threshold: Literal["average", "median", "max", "second-min"]
    fedreg_augmentation: Literal["simple", "auto", "none"]
    fedreg_max_growth: float
    fedreg_redraw: bool
    fedreg_order: Literal["sequential", "interleaved"]
    fedreg_head_layers: int
    fedreg_variant: Literal["full", "same-weights", "one-head", "original-only", "rebalanced-only"]
    fedrep_head_layers: int
    fedrep_p_epochs: int
    fedrod_balanced: bool
    fedrod_personal_start: Literal["generic", "zero"]
    fedsplit_layers: str
    fedsplit_splits: Literal["channel", "weight"]
    fedsplit_share_buffers: bool
    fedsplit_server_step: float
    fedsplit_split: str
    fedsplit_shared: float
    fedtgp_pull: float
    fedtgp_predict: Literal["model", "prototype"]
    fedtgp_server_learning_rate: float
    fedtgp_server_epochs: int
    fedtgp_margin: float
    flexlora_ranks: str
    gpfl_guidance_weight: float
    gpfl_embedding_decay: float
    knn_per_k: int
    knn_per_scale: float
    knn_per_weight: float
    knn_per_tune: bool
    lg_fedavg_head_layers: int
    moon_mu: float
    moon_temperature: float
    per_fedavg_beta: float
    per_fedavg_delta: float
    per_fedavg_gradient: Literal["first-order", "hessian-free"]
    pfedfda_beta: float
    pfedgate_share: float
    pfedgate_gate_learning_rate: float
    pfedgate_clip_norm: float
    pfedgate_opened: float
    pfedgate_blocks: int
    pfedme_pull: float
    pfedme_steps: int
    pfedme_personal_learning_rate: float
    pfedme_beta: float
    pfedpara_gamma: float
    pfedsd_distillation: float
    pfedsd_temperature: float
    scaffold_server_learning_rate: float
    scaffold_control: Literal["steps", "start"]
    scaffold_momentum: float


class Settings(CommonSettings, total=False):
    """Settings that `fedpfl.run` takes beside its own arguments."""

    output_dir: str
    seed: int
    run_name: str


class SweepSettings(CommonSettings, total=False):
    """Settings that all runs of `fedpfl.compare` and `fedpfl.sweep` have in common."""

    method: Any
    model: Any
    dataset: Any
    data: Any
    num_clients: Any
    continue_from: str


# Default, limits, and whether the user's own parts are allowed besides.
LIMITS: Mapping[str, tuple[Any, dict[str, Any], bool]] = {
    'method': ('feddecomp', {'choices': ('apfl', 'clustered-fl', 'ditto', 'factorized-fl', 'factorized-fl-plus', 'fedala', 'fedamp', 'fedas', 'fedavg', 'fedbabu', 'fedbn', 'fedcac', 'fedcp', 'feddbe', 'feddecomp', 'fedlora', 'feddyn', 'fedem', 'fedfac', 'fedfomo', 'fedgh', 'fedpac', 'fedper', 'fedproto', 'fedprox', 'fedreg', 'fedrep', 'fedrod', 'fedsa-lora', 'fedsplit', 'fedtgp', 'flexlora', 'gpfl', 'knn-per', 'lg-fedavg', 'local', 'moon', 'per-fedavg', 'pfedfda', 'pfedgate', 'pfedme', 'pfedpara', 'pfedsd', 'scaffold')}, True),
    'client-models': ('', {}, False),
    'num-server-rounds': (5, {'minimum': 1}, False),
    'fraction-train': (1.0, {'above': 0, 'maximum': 1}, False),
    'personal-head': (False, {}, False),
    'new-clients': (0.0, {'minimum': 0, 'maximum': 0.9}, False),
    'initial-weights': ('', {}, False),
    'evaluate-every': (1, {'minimum': 0}, False),
    'test-at': ('end', {'choices': ('end', 'start')}, False),
    'early-stop': (0, {'minimum': 0}, False),
    'metrics': ('', {}, False),
    'choose-by': ('accuracy', {}, False),
    'evaluate-global': (False, {}, False),
    'evaluate-trained': (False, {}, False),
    'diagnostics': (False, {}, False),
    'seed': (1, {'minimum': 0}, False),
    'output-dir': ('~/.fedpfl/runs', {}, False),
    'state-dir': ('~/.fedpfl/state', {}, False),
    'device-models': ('auto', {'choices': ('auto', 'always', 'never')}, False),
    'device-model-every': (0, {'minimum': 0}, False),
    'device-models-kept': (2, {'minimum': 1}, False),
    'run-name': ('', {}, False),
    'resume': (False, {}, False),
    'continue-from': ('', {}, False),
    'personalise': ('none', {'choices': ('none', 'local-train', 'fine-tune')}, False),
    'missed-timeout': (0.0, {'minimum': 0}, False),
    'wire-dtype': ('float32', {'choices': ('float32', 'float16')}, False),
    'node-timeout': (600.0, {'above': 0}, False),
    'round-timeout': (600.0, {'above': 0}, False),
    'check-after': (60.0, {'above': 0}, False),
    'min-clients': (0, {'minimum': 0}, False),
    'max-client-samples': (1000000, {'minimum': 1}, False),
    'schedule': ('synchronous', {'choices': ('synchronous', 'buffered')}, False),
    'buffer-size': (10, {'minimum': 1}, False),
    'over-selection': (0.0, {'minimum': 0, 'maximum': 10}, False),
    'round-deadline': (0.0, {'minimum': 0}, False),
    'round-deadline-pace': (0.0, {'minimum': 0}, False),
    'replay': ('', {}, False),
    'new-nodes': ('ignore', {'choices': ('ignore', 'join')}, False),
    'forget-after': (0, {'minimum': 0}, False),
    'min-replies': (1, {'minimum': 1}, False),
    'tracker': ('none', {'choices': ('none', 'wandb', 'mlflow')}, False),
    'tracker-project': ('fedpfl', {}, False),
    'listeners': ('', {}, False),
    'trainable': ('all', {}, False),
    'lora-rank': (4, {'minimum': 1}, False),
    'lora-alpha': (8.0, {'above': 0}, False),
    'lora-targets': ('', {}, False),
    'download-weights': (False, {}, False),
    'dataset': ('digits', {'choices': ('npz', 'image-folder', 'table', 'series', 'huggingface', 'clients', 'tiny-imagenet', 'shakespeare', 'ag-news', 'digits', 'mnist', 'fashion-mnist', 'emnist', 'cifar10', 'cifar100', 'svhn')}, True),
    'data': ('', {}, False),
    'data-dir': ('~/.fedpfl/data', {}, False),
    'normalize': ('half', {'choices': ('half', 'cifar-100')}, False),
    'standardize': ('none', {'choices': ('none', 'client', 'all')}, False),
    'impute': ('refuse', {'choices': ('refuse', 'mean')}, False),
    'image-size': (0, {'minimum': 0, 'maximum': 4096}, False),
    'text-step': (80, {'minimum': 1}, False),
    'label-column': ('label', {}, False),
    'client-column': ('client', {}, False),
    'split-column': ('split', {}, False),
    'ignore-columns': ('', {}, False),
    'class-names': ('', {}, False),
    'window-column': ('window', {}, False),
    'window-length': (0, {'minimum': 0}, False),
    'window-step': (0, {'minimum': 0}, False),
    'num-clients': (0, {'minimum': 0}, False),
    'num-classes': (0, {'minimum': 0}, False),
    'partitioner': ('auto', {'choices': ('auto', 'iid', 'dirichlet', 'dirichlet-client', 'pathological', 'natural', 'domains', 'pfllib-dirichlet', 'pfllib-pathological')}, False),
    'division-file': ('', {}, False),
    'partition-seed': (0, {'minimum': 0}, False),
    'dirichlet-alpha': (0.3, {'above': 0}, False),
    'classes-per-client': (2, {'minimum': 1}, False),
    'train-samples': (500, {'minimum': 1}, False),
    'test-samples': (100, {'minimum': 1}, False),
    'split': ('mixed', {'choices': ('mixed', 'given')}, False),
    'test-fraction': (0.25, {'above': 0, 'maximum': 0.99}, False),
    'test-on': ('own', {'choices': ('own', 'all')}, False),
    'validation-fraction': (0.0, {'minimum': 0, 'maximum': 0.9}, False),
    'min-samples': (10, {'minimum': 2}, False),
    'permute-labels': (False, {}, False),
    'local-epochs': (10, {'minimum': 1}, False),
    'batch-size': (10, {'minimum': 1}, False),
    'last-batch': ('drop', {'choices': ('drop', 'keep', 'even')}, False),
    'loss': ('cross-entropy', {'choices': ('cross-entropy', 'mse', 'multi-label')}, False),
    'batch-loss': ('mean', {'choices': ('mean', 'sum')}, False),
    'label-smoothing': (0.0, {'minimum': 0, 'maximum': 0.999999}, False),
    'class-weights': ('none', {'choices': ('none', 'balanced')}, False),
    'augmentation': ('none', {'choices': ('none', 'flip-crop', 'randaugment')}, True),
    'local-steps': (0, {'minimum': 0}, False),
    'learning-rate': (0.02, {'above': 0}, False),
    'learning-rate-schedule': ('constant', {'choices': ('constant', 'step', 'exponential', 'cosine')}, False),
    'learning-rate-over': ('rounds', {'choices': ('rounds', 'steps')}, False),
    'learning-rate-decay': (0.99, {'above': 0, 'maximum': 1}, False),
    'learning-rate-decay-every': (10, {'minimum': 1}, False),
    'learning-rate-warm-up': (0, {'minimum': 0}, False),
    'clip-norm': (0.0, {'minimum': 0}, False),
    'momentum': (0.9, {'minimum': 0, 'maximum': 0.999999}, False),
    'keep-momentum': (False, {}, False),
    'weight-decay': (0.0, {'minimum': 0}, False),
    'tune-epochs': (0, {'minimum': 0}, False),
    'device': ('cpu', {'choices': ('cpu', 'cuda')}, False),
    'precision': ('float32', {'choices': ('float32', 'bf16')}, False),
    'threads': (0, {'minimum': 0}, False),
    'server-optimizer': ('none', {'choices': ('none', 'momentum', 'adam', 'yogi')}, False),
    'server-learning-rate': (0.0, {'minimum': 0}, False),
    'server-momentum': (0.9, {'minimum': 0, 'maximum': 0.999999}, False),
    'server-beta2': (0.99, {'minimum': 0, 'maximum': 0.999999}, False),
    'server-tau': (0.001, {'above': 0}, False),
    'update-norm-limit': (4.0, {'minimum': 0}, False),
    'robust-aggregation': ('none', {'choices': ('none', 'clip', 'median', 'trimmed-mean', 'krum')}, False),
    'robust-clip': (0.0, {'minimum': 0}, False),
    'robust-false-share': (0.2, {'minimum': 0, 'maximum': 0.49}, False),
    'krum-clients': (0, {'minimum': 0}, False),
    'max-weight-share': (1.0, {'above': 0, 'maximum': 1}, False),
    'dp-noise-multiplier': (0.0, {'minimum': 0}, False),
    'dp-clip-norm': (1.0, {'above': 0}, False),
    'dp-delta': (1e-05, {'above': 0, 'maximum': 0.1}, False),
    'dp-where': ('client', {'choices': ('client', 'server')}, False),
    'dp-reproducible': (False, {}, False),
    'apfl-alpha': (0.5, {'minimum': 0, 'maximum': 1}, False),
    'apfl-adaptive': (True, {}, False),
    'clustered-fl-epsilon1': (0.4, {'minimum': 0}, False),
    'clustered-fl-epsilon2': (1.6, {'minimum': 0}, False),
    'clustered-fl-weights': ('examples', {'choices': ('examples', 'uniform')}, False),
    'clustered-fl-linkage': ('complete', {'choices': ('complete', 'single')}, False),
    'clustered-fl-first-split': (21, {'minimum': 1}, False),
    'clustered-fl-smallest-split': (3, {'minimum': 2}, False),
    'ditto-pull': (0.1, {'minimum': 0}, False),
    'ditto-p-epochs': (5, {'minimum': 1}, False),
    'factorized-fl-l1': (0.0005, {'minimum': 0}, False),
    'factorized-fl-penalty': ('gradient', {'choices': ('gradient', 'threshold')}, False),
    'factorized-fl-mu': (True, {}, False),
    'factorized-fl-threshold': (0.0, {'minimum': -1}, False),
    'factorized-fl-scaling': (1.0, {'minimum': 0}, False),
    'factorized-fl-min-aggregate': (10, {'minimum': 1}, False),
    'factorized-fl-matching': ('similar', {'choices': ('similar', 'random', 'worst')}, False),
    'factorized-fl-classifier': ('personal', {'choices': ('personal', 'shared')}, False),
    'factorized-fl-test': ('received', {'choices': ('received', 'trained')}, False),
    'factorized-fl-plus-l1': (0.0005, {'minimum': 0}, False),
    'factorized-fl-plus-penalty': ('gradient', {'choices': ('gradient', 'threshold')}, False),
    'factorized-fl-plus-mu': (True, {}, False),
    'factorized-fl-plus-threshold': (0.0, {'minimum': -1}, False),
    'factorized-fl-plus-scaling': (1.0, {'minimum': 0}, False),
    'factorized-fl-plus-min-aggregate': (10, {'minimum': 1}, False),
    'factorized-fl-plus-matching': ('similar', {'choices': ('similar', 'random', 'worst')}, False),
    'factorized-fl-plus-classifier': ('personal', {'choices': ('personal', 'shared')}, False),
    'factorized-fl-plus-test': ('received', {'choices': ('received', 'trained')}, False),
    'fedala-layers': (1, {'minimum': 0}, False),
    'fedala-samples': (0.8, {'above': 0, 'maximum': 1}, False),
    'fedala-weight-learning-rate': (1.0, {'above': 0}, False),
    'fedala-epochs': (1, {'minimum': 1}, False),
    'fedala-first-epochs': (10, {'minimum': 1}, False),
    'fedamp-alpha': (1.0, {'minimum': 0}, False),
    'fedamp-sigma': (50.0, {'above': 0}, False),
    'fedamp-prox': (0.1, {'minimum': 0}, False),
    'fedas-alignment-epochs': (1, {'minimum': 0}, False),
    'fedas-alignment-learning-rate': (0.01, {'above': 0}, False),
    'fedavg-weights': ('examples', {'choices': ('examples', 'uniform')}, False),
    'fedavg-share-buffers': (True, {}, False),
    'fedbabu-head-layers': (1, {'minimum': 1}, False),
    'fedbabu-tuning-epochs': (10, {'minimum': 0}, False),
    'fedbabu-tune': ('head', {'choices': ('head', 'everything')}, False),
    'fedcac-share': (0.5, {'above': 0, 'maximum': 1}, False),
    'fedcac-beta': (100.0, {'above': 0}, False),
    'fedcp-alignment': (5.0, {'minimum': 0}, False),
    'feddbe-kappa': (50.0, {'minimum': 0}, False),
    'feddbe-momentum': (1.0, {'above': 0, 'maximum': 1}, False),
    'feddecomp-rank-conv': (0.6, {'above': 0, 'maximum': 1}, False),
    'feddecomp-rank-linear': (0.6, {'above': 0, 'maximum': 1}, False),
    'feddecomp-lora-epochs': (-1, {'minimum': -1}, False),
    'feddecomp-init': ('code', {'choices': ('paper', 'code')}, False),
    'feddecomp-variant': ('alternating', {'choices': ('alternating', 'reverse', 'tau-only', 'simultaneous', 'all-shared', 'all-local')}, False),
    'feddecomp-absent-clients': ('skip', {'choices': ('skip', 'last')}, False),
    'feddecomp-lora-moves-statistics': (False, {}, False),
    'feddyn-alpha': (0.01, {'minimum': 0}, False),
    'fedem-components': (3, {'minimum': 1, 'maximum': 100}, False),
    'fedfac-layers': ('auto', {}, False),
    'fedfac-splits': ('channel', {'choices': ('channel', 'weight')}, False),
    'fedfac-share-buffers': (True, {}, False),
    'fedfac-server-step': (1.0, {'above': 0}, False),
    'fedfac-variant': ('dynamic', {'choices': ('static', 'dynamic')}, False),
    'fedfac-kappa': ('0.85', {}, False),
    'fedfac-tau': ('0.5', {}, False),
    'fedfac-factor': ('principal-axis', {'choices': ('principal-axis', 'eigenvector')}, False),
    'fedfac-tolerance': (0.001, {'above': 0}, False),
    'fedfac-max-iterations': (200, {'minimum': 1}, False),
    'fedfac-update': ('weights', {'choices': ('weights', 'difference')}, False),
    'fedfac-mask': ('none', {'choices': ('none', 'shared', 'personal')}, False),
    'fedfac-pre-rounds': (1, {'minimum': 1}, False),
    'fedfomo-models': (5, {'minimum': 0}, False),
    'fedfomo-validation': (0.2, {'minimum': 0, 'maximum': 0.9}, False),
    'fedfomo-epsilon': (0.3, {'minimum': 0, 'maximum': 1}, False),
    'fedfomo-epsilon-decay': (0.05, {'minimum': 0, 'maximum': 1}, False),
    'fedfomo-baseline': ('before-training', {'choices': ('before-training', 'trained')}, False),
    'fedgh-server-learning-rate': (0.01, {'above': 0}, False),
    'fedgh-server-epochs': (1, {'minimum': 1}, False),
    'fedgh-server-batch-size': (1, {'minimum': 1}, False),
    'fedpac-alignment': (1.0, {'minimum': 0}, False),
    'fedpac-p-epochs': (1, {'minimum': 0}, False),
    'fedpac-combine': (True, {}, False),
    'fedper-head-layers': (1, {'minimum': 0}, False),
    'fedproto-pull': (1.0, {'minimum': 0}, False),
    'fedproto-predict': ('model', {'choices': ('model', 'prototype')}, False),
    'fedprox-mu': (0.001, {'minimum': 0}, False),
    'fedreg-threshold': ('average', {'choices': ('average', 'median', 'max', 'second-min')}, False),
    'fedreg-augmentation': ('simple', {'choices': ('simple', 'auto', 'none')}, False),
    'fedreg-max-growth': (20.0, {'minimum': 1, 'maximum': 10000}, False),
    'fedreg-redraw': (False, {}, False),
    'fedreg-order': ('sequential', {'choices': ('sequential', 'interleaved')}, False),
    'fedreg-head-layers': (1, {'minimum': 1}, False),
    'fedreg-variant': ('full', {'choices': ('full', 'same-weights', 'one-head', 'original-only', 'rebalanced-only')}, False),
    'fedrep-head-layers': (1, {'minimum': 1}, False),
    'fedrep-p-epochs': (5, {'minimum': 0}, False),
    'fedrod-balanced': (True, {}, False),
    'fedrod-personal-start': ('generic', {'choices': ('generic', 'zero')}, False),
    'fedsplit-layers': ('auto', {}, False),
    'fedsplit-splits': ('channel', {'choices': ('channel', 'weight')}, False),
    'fedsplit-share-buffers': (True, {}, False),
    'fedsplit-server-step': (1.0, {'above': 0}, False),
    'fedsplit-split': ('random', {}, False),
    'fedsplit-shared': (0.5, {'minimum': 0, 'maximum': 1}, False),
    'fedtgp-pull': (1.0, {'minimum': 0}, False),
    'fedtgp-predict': ('model', {'choices': ('model', 'prototype')}, False),
    'fedtgp-server-learning-rate': (0.01, {'above': 0}, False),
    'fedtgp-server-epochs': (100, {'minimum': 1}, False),
    'fedtgp-margin': (100.0, {'minimum': 0}, False),
    'flexlora-ranks': ('', {}, False),
    'gpfl-guidance-weight': (0.01, {'minimum': 0}, False),
    'gpfl-embedding-decay': (0.1, {'minimum': 0}, False),
    'knn-per-k': (10, {'minimum': 1}, False),
    'knn-per-scale': (1.0, {'above': 0}, False),
    'knn-per-weight': (0.5, {'minimum': 0, 'maximum': 1}, False),
    'knn-per-tune': (False, {}, False),
    'lg-fedavg-head-layers': (1, {'minimum': 1}, False),
    'moon-mu': (1.0, {'minimum': 0}, False),
    'moon-temperature': (0.5, {'above': 0}, False),
    'per-fedavg-beta': (0.001, {'above': 0}, False),
    'per-fedavg-delta': (0.001, {'above': 0}, False),
    'per-fedavg-gradient': ('first-order', {'choices': ('first-order', 'hessian-free')}, False),
    'pfedfda-beta': (-1.0, {'minimum': -1, 'maximum': 1}, False),
    'pfedgate-share': (0.5, {'above': 0, 'maximum': 1}, False),
    'pfedgate-gate-learning-rate': (0.1, {'above': 0}, False),
    'pfedgate-clip-norm': (10.0, {'above': 0}, False),
    'pfedgate-opened': (0.99, {'above': 0, 'maximum': 0.999}, False),
    'pfedgate-blocks': (5, {'minimum': 1}, False),
    'pfedme-pull': (15.0, {'minimum': 0}, False),
    'pfedme-steps': (5, {'minimum': 1}, False),
    'pfedme-personal-learning-rate': (0.02, {'above': 0}, False),
    'pfedme-beta': (1.0, {'above': 0}, False),
    'pfedpara-gamma': (0.5, {'minimum': 0, 'maximum': 1}, False),
    'pfedsd-distillation': (0.5, {'minimum': 0}, False),
    'pfedsd-temperature': (3.0, {'above': 0}, False),
    'scaffold-server-learning-rate': (1.0, {'above': 0}, False),
    'scaffold-control': ('steps', {'choices': ('steps', 'start')}, False),
    'scaffold-momentum': (0.0, {'minimum': 0, 'maximum': 0.999999}, False),
}
