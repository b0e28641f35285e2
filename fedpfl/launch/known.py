"""Types of all settings for editors, with their limits for a check that needs no torch.

Written by `fedpfl config --update`.
"""

# ruff: noqa: E501
# fmt: off

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal, TypedDict

_One = str | Callable[..., Any]
FunctionsOrNames = _One | Sequence[_One] | Mapping[int, _One] | Mapping[str, _One]


class CommonSettings(TypedDict, total=False):
    """Settings that `fedpfl.run`, `fedpfl.compare` and `fedpfl.sweep` take."""

    client_models: FunctionsOrNames
    num_server_rounds: Annotated[int, {'minimum': 1}]
    fraction_train: Annotated[float, {'above': 0, 'maximum': 1}]
    personal_head: bool
    new_clients: Annotated[float, {'minimum': 0, 'maximum': 0.9}]
    initial_weights: str
    download_weights: bool
    evaluate_every: Annotated[int, {'minimum': 0}]
    test_at: Literal["end", "start"]
    early_stop: Annotated[int, {'minimum': 0}]
    metrics: FunctionsOrNames
    choose_by: str
    state_dir: str
    device_models: Literal["auto", "always", "never"]
    device_model_every: Annotated[int, {'minimum': 0}]
    wire_dtype: Literal["float32", "float16"]
    node_timeout: Annotated[float, {'above': 0}]
    round_timeout: Annotated[float, {'above': 0}]
    check_after: Annotated[float, {'above': 0}]
    min_clients: Annotated[int, {'minimum': 0}]
    max_client_samples: Annotated[int, {'minimum': 1}]
    min_replies: Annotated[int, {'minimum': 1}]
    data_dir: str
    normalize: Literal["half", "cifar-10", "cifar-100", "svhn"]
    standardize: Literal["none", "client", "all"]
    impute: Literal["refuse", "mean"]
    image_size: Annotated[int, {'minimum': 0, 'maximum': 4096}]
    text_step: Annotated[int, {'minimum': 1}]
    label_column: str
    client_column: str
    split_column: str
    time_column: str
    ignore_columns: str
    category_columns: str
    class_names: str
    window_column: str
    window_length: Annotated[int, {'minimum': 0}]
    window_step: Annotated[int, {'minimum': 0}]
    num_classes: Annotated[int, {'minimum': 0}]
    partitioner: str
    division_file: str
    partition_seed: Annotated[int, {'minimum': 0}]
    dirichlet_alpha: Annotated[float, {'above': 0}]
    classes_per_client: Annotated[int, {'minimum': 1}]
    train_samples: Annotated[int, {'minimum': 1}]
    test_samples: Annotated[int, {'minimum': 1}]
    split: Literal["mixed", "given", "stratified", "time"]
    test_fraction: Annotated[float, {'above': 0, 'maximum': 0.99}]
    test_on: Literal["own", "all", "server"]
    validation_fraction: Annotated[float, {'minimum': 0, 'maximum': 0.9}]
    feature_skew: str
    min_samples: Annotated[int, {'minimum': 2}]
    permute_labels: bool
    local_epochs: Annotated[int, {'minimum': 1}]
    batch_size: Annotated[int, {'minimum': 1}]
    last_batch: Literal["drop", "keep", "even"]
    loss: Annotated[FunctionsOrNames, {'choices': ('cross-entropy', 'mse', 'multi-label')}]
    batch_loss: Literal["mean", "sum"]
    class_weights: str
    augmentation: Annotated[FunctionsOrNames, {'choices': ('none', 'flip-crop', 'randaugment', 'flip-rotate', 'crop-flip-rotate', 'zoom-flip-colour')}]
    local_steps: Annotated[int, {'minimum': 0}]
    optimizer: str
    learning_rate: Annotated[float, {'above': 0}]
    learning_rate_schedule: Literal["constant", "exponential", "cosine"]
    learning_rate_decay: Annotated[float, {'above': 0, 'maximum': 1}]
    learning_rate_warm_up: Annotated[int, {'minimum': 0}]
    clip_norm: Annotated[float, {'minimum': 0}]
    momentum: Annotated[float, {'minimum': 0, 'maximum': 0.999999}]
    weight_decay: Annotated[float, {'minimum': 0}]
    tune_epochs: Annotated[int, {'minimum': 0}]
    device: Literal["cpu", "cuda"]
    precision: Literal["float32", "tf32", "bf16"]
    clients_at_once: Annotated[int, {'minimum': 0}]
    threads: Annotated[int, {'minimum': 0}]
    trainable: str
    lora_rank: Annotated[int, {'minimum': 1}]
    lora_alpha: Annotated[float, {'above': 0}]
    lora_targets: str
    server_optimizer: Literal["none", "momentum", "adam", "yogi"]
    server_learning_rate: Annotated[float, {'minimum': 0}]
    server_momentum: Annotated[float, {'minimum': 0, 'maximum': 0.999999}]
    server_tau: Annotated[float, {'above': 0}]
    update_norm_limit: Annotated[float, {'minimum': 0}]
    robust_aggregation: Literal["none", "clip", "median", "trimmed-mean", "krum"]
    robust_clip: Annotated[float, {'minimum': 0}]
    robust_false_share: Annotated[float, {'minimum': 0, 'maximum': 0.49}]
    max_weight_share: Annotated[float, {'above': 0, 'maximum': 1}]
    dp_noise_multiplier: Annotated[float, {'minimum': 0}]
    dp_clip_norm: Annotated[float, {'above': 0}]
    dp_delta: Annotated[float, {'above': 0, 'maximum': 0.1}]
    dp_where: Literal["client", "server"]
    dp_reproducible: bool
    evaluate_global: bool
    diagnostics: bool
    keep_momentum: bool
    evaluate_trained: bool
    schedule: Literal["synchronous", "buffered"]
    buffer_size: Annotated[int, {'minimum': 1}]
    over_selection: Annotated[float, {'minimum': 0, 'maximum': 10}]
    round_deadline: Annotated[float, {'minimum': 0}]
    round_deadline_pace: Annotated[float, {'minimum': 0}]
    drop_rate: Annotated[float, {'minimum': 0, 'maximum': 0.99}]
    available_clients: str
    replay: str
    new_nodes: Literal["ignore", "join"]
    forget_after: Annotated[int, {'minimum': 0}]
    devices_model: str
    client_settings: str
    personalise: Literal["none", "local-train", "fine-tune"]
    missed_timeout: Annotated[float, {'minimum': 0}]
    listeners: str
    head_layers: Annotated[int, {'minimum': 1}]
    apfl_alpha: Annotated[float, {'minimum': 0, 'maximum': 1}]
    apfl_adaptive: bool
    clustered_fl_epsilon1: Annotated[float, {'minimum': 0}]
    clustered_fl_epsilon2: Annotated[float, {'minimum': 0}]
    clustered_fl_first_split: Annotated[int, {'minimum': 1}]
    ditto_pull: Annotated[float, {'minimum': 0}]
    ditto_p_epochs: Annotated[int, {'minimum': 1}]
    factorized_fl_l1: Annotated[float, {'minimum': 0}]
    factorized_fl_penalty: Literal["gradient", "threshold"]
    factorized_fl_mu: bool
    factorized_fl_threshold: Annotated[float, {'minimum': -1}]
    factorized_fl_scaling: Annotated[float, {'minimum': 0}]
    factorized_fl_min_aggregate: Annotated[int, {'minimum': 1}]
    factorized_fl_matching: Literal["similar", "random", "worst"]
    factorized_fl_classifier: Literal["personal", "shared"]
    fedala_layers: Annotated[int, {'minimum': 0}]
    fedala_samples: Annotated[float, {'above': 0, 'maximum': 1}]
    fedala_weight_learning_rate: Annotated[float, {'above': 0}]
    fedamp_alpha: Annotated[float, {'minimum': 0}]
    fedamp_sigma: Annotated[float, {'above': 0}]
    fedamp_prox: Annotated[float, {'minimum': 0}]
    fedavg_weights: Literal["examples", "uniform"]
    fedavg_share_buffers: bool
    fedbabu_tuning_epochs: Annotated[int, {'minimum': 0}]
    fedbabu_tune: Literal["head", "everything"]
    fedcac_share: Annotated[float, {'above': 0, 'maximum': 1}]
    fedcac_beta: Annotated[float, {'above': 0}]
    fedcp_alignment: Annotated[float, {'minimum': 0}]
    feddbe_kappa: Annotated[float, {'minimum': 0}]
    feddbe_momentum: Annotated[float, {'above': 0, 'maximum': 1}]
    feddecomp_rank_conv: Annotated[float, {'above': 0, 'maximum': 1}]
    feddecomp_rank_linear: Annotated[float, {'above': 0, 'maximum': 1}]
    feddecomp_lora_epochs: Annotated[int, {'minimum': -1}]
    feddecomp_init: Literal["paper", "code"]
    feddecomp_variant: Literal["alternating", "reverse", "tau-only", "simultaneous", "all-shared", "all-local"]
    feddecomp_absent_clients: Literal["skip", "last"]
    feddecomp_lora_moves_statistics: bool
    feddyn_alpha: Annotated[float, {'minimum': 0}]
    fedem_components: Annotated[int, {'minimum': 1, 'maximum': 100}]
    fedfac_layers: str
    fedfac_splits: Literal["channel", "weight"]
    fedfac_share_buffers: bool
    fedfac_variant: Literal["static", "dynamic"]
    fedfac_kappa: str
    fedfac_tau: str
    fedfac_factor: Literal["principal-axis", "eigenvector"]
    fedfac_update: Literal["weights", "difference"]
    fedfac_mask: Literal["none", "shared", "personal"]
    fedfomo_models: Annotated[int, {'minimum': 0}]
    fedfomo_validation: Annotated[float, {'minimum': 0, 'maximum': 0.9}]
    fedproto_pull: Annotated[float, {'minimum': 0}]
    fedproto_predict: Literal["model", "prototype"]
    fedprox_mu: Annotated[float, {'minimum': 0}]
    fedreg_threshold: Literal["average", "median", "max", "second-min"]
    fedreg_augmentation: Literal["simple", "auto", "none"]
    fedreg_personal_start: Literal["generic", "random"]
    fedreg_variant: Literal["full", "same-weights", "one-head", "original-only", "rebalanced-only"]
    fedrep_p_epochs: Annotated[int, {'minimum': 0}]
    fedrod_personal_start: Literal["generic", "zero"]
    fedsplit_split: str
    fedsplit_shared: Annotated[float, {'minimum': 0, 'maximum': 1}]
    fedtgp_margin: Annotated[float, {'minimum': 0}]
    flexlora_ranks: str
    gpfl_guidance_weight: Annotated[float, {'minimum': 0}]
    gpfl_embedding_decay: Annotated[float, {'minimum': 0}]
    knn_per_weight: Annotated[float, {'minimum': 0, 'maximum': 1}]
    knn_per_tune: bool
    moon_mu: Annotated[float, {'minimum': 0}]
    per_fedavg_beta: Annotated[float, {'above': 0}]
    per_fedavg_gradient: Literal["first-order", "hessian-free"]
    pfedgate_share: Annotated[float, {'above': 0, 'maximum': 1}]
    pfedme_pull: Annotated[float, {'minimum': 0}]
    pfedme_steps: Annotated[int, {'minimum': 1}]
    pfedme_personal_learning_rate: Annotated[float, {'above': 0}]
    pfedme_beta: Annotated[float, {'above': 0}]
    pfedpara_gamma: Annotated[float, {'minimum': 0, 'maximum': 1}]
    pfedsd_distillation: Annotated[float, {'minimum': 0}]
    scaffold_momentum: Annotated[float, {'minimum': 0, 'maximum': 0.999999}]


class Settings(CommonSettings, total=False):
    """Settings that `fedpfl.run` takes besides its own arguments."""

    output_dir: str
    seed: Annotated[int, {'minimum': 0}]
    run_name: str


class SweepSettings(CommonSettings, total=False):
    """Settings that all runs of `fedpfl.compare` and `fedpfl.sweep` have in common."""

    method: Any
    model: Any
    dataset: Any
    data: Any
    num_clients: Any
    continue_from: str


class Arguments(TypedDict, total=False):
    """Settings that are arguments of `fedpfl.run`."""

    method: Annotated[str, {'choices': ('apfl', 'clustered-fl', 'ditto', 'factorized-fl', 'factorized-fl-plus', 'fedala', 'fedamp', 'fedas', 'fedavg', 'fedbabu', 'fedbn', 'fedcac', 'fedcp', 'feddbe', 'feddecomp', 'fedlora', 'feddyn', 'fedem', 'fedfac', 'fedfomo', 'fedgh', 'fedpac', 'fedper', 'fedproto', 'fedprox', 'fedreg', 'fedrep', 'fedrod', 'fedsa-lora', 'fedsplit', 'fedtgp', 'flexlora', 'gpfl', 'knn-per', 'lg-fedavg', 'local', 'moon', 'per-fedavg', 'pfedfda', 'pfedgate', 'pfedme', 'pfedpara', 'pfedsd', 'scaffold')}]
    model: str
    dataset: Annotated[str, {'choices': ('npz', 'image-folder', 'table', 'series', 'huggingface', 'clients', 'digits', 'mnist', 'fashion-mnist', 'emnist', 'cifar10', 'cifar100', 'svhn', 'tiny-imagenet', 'shakespeare', 'ag-news')}]
    data: str
    num_clients: Annotated[int, {'minimum': 0}]
    resume: bool
    continue_from: str
