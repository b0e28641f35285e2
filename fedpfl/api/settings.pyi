"""Types of all settings for editors. Written by `fedpfl config --update`."""

# fmt: off

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypedDict

_One = str | Callable[..., Any]
FunctionsOrNames = _One | Sequence[_One] | Mapping[int, _One] | Mapping[str, _One]

class CommonSettings(TypedDict, total=False):
    client_models: FunctionsOrNames
    num_server_rounds: int
    fraction_train: float
    personal_head: bool
    new_clients: float
    initial_weights: str
    download_weights: bool
    evaluate_every: int
    test_at: Literal["end", "start"]
    early_stop: int
    metrics: FunctionsOrNames
    choose_by: str
    state_dir: str
    device_models: Literal["auto", "always", "never"]
    wire_dtype: Literal["float32", "float16"]
    node_timeout: float
    round_timeout: float
    check_after: float
    min_clients: int
    max_client_samples: int
    min_replies: int
    data_dir: str
    normalize: Literal["half", "cifar-10", "cifar-100", "imagenet", "svhn"]
    standardize: Literal["none", "client", "all"]
    impute: Literal["refuse", "mean"]
    image_size: int
    tokenizer: FunctionsOrNames
    label_column: str
    client_column: str
    time_column: str
    group_column: str
    ignore_columns: str
    category_columns: str
    class_names: str
    window_length: int
    window_step: int
    num_classes: int
    partitioner: str
    division_file: str
    partition_seed: int
    dirichlet_alpha: float
    classes_per_client: int
    train_samples: int
    test_samples: int
    split: Literal["auto", "mixed", "given", "stratified", "time"]
    test_fraction: float
    test_on: Literal["own", "all", "server"]
    validation_fraction: float
    min_samples: int
    permute_labels: bool
    local_epochs: int
    batch_size: int
    last_batch: Literal["drop", "keep", "even"]
    loss: FunctionsOrNames
    batch_loss: Literal["mean", "sum"]
    class_weights: Literal["none", "balanced"]
    augmentation: FunctionsOrNames
    local_steps: int
    optimizer: FunctionsOrNames
    learning_rate: float
    learning_rate_schedule: Literal["constant", "exponential", "cosine"]
    learning_rate_decay: float
    learning_rate_warm_up: int
    clip_norm: float
    momentum: float
    weight_decay: float
    tune_epochs: int
    device: Literal["cpu", "cuda"]
    precision: Literal["float32", "tf32", "bf16"]
    clients_at_once: int
    threads: int
    trainable: str
    lora_rank: int
    lora_alpha: float
    lora_targets: str
    server_optimizer: Literal["none", "momentum", "adam", "yogi"]
    server_learning_rate: float
    server_momentum: float
    update_norm_limit: float
    robust_aggregation: Literal["none", "clip", "median", "trimmed-mean", "krum"]
    robust_false_share: float
    max_weight_share: float
    dp_noise_multiplier: float
    dp_clip_norm: float
    dp_delta: float
    dp_epsilon: float
    dp_where: Literal["client", "server"]
    dp_reproducible: bool
    evaluate_global: bool
    diagnostics: bool
    keep_momentum: bool
    evaluate_trained: bool
    available_clients: str
    new_nodes: Literal["ignore", "join"]
    client_settings: str
    personalise: Literal["none", "local-train", "fine-tune"]
    listeners: str
    head_layers: int
    common_model: str
    apfl_alpha: float
    apple_relation_learning_rate: float
    apple_mu: float
    apple_pull_rounds: int
    clustered_fl_epsilon1: float
    clustered_fl_epsilon2: float
    clustered_fl_first_split: int
    ditto_pull: float
    ditto_p_epochs: int
    factorized_fl_l1: float
    factorized_fl_penalty: Literal["gradient", "threshold"]
    factorized_fl_mu: bool
    factorized_fl_kernels: Literal["filter", "view"]
    factorized_fl_threshold: float
    factorized_fl_scaling: float
    factorized_fl_min_aggregate: int
    factorized_fl_matching: Literal["similar", "random", "worst"]
    factorized_fl_classifier: Literal["personal", "shared"]
    fedala_layers: int
    fedamp_alpha: float
    fedamp_sigma: float
    fedamp_prox: float
    fedavg_weights: Literal["examples", "uniform"]
    fedavg_share_buffers: bool
    fedbabu_tuning_epochs: int
    fedbabu_tune: Literal["head", "everything"]
    fedcac_share: float
    fedcac_beta: float
    fedcp_alignment: float
    feddbe_kappa: float
    feddecomp_rank_conv: float
    feddecomp_rank_linear: float
    feddecomp_lora_epochs: int
    feddecomp_init: Literal["paper", "code"]
    feddecomp_scale: float
    feddecomp_variant: Literal["alternating", "reverse", "tau-only", "simultaneous", "all-shared", "all-local"]
    feddecomp_absent_clients: Literal["skip", "last"]
    feddistill_teaching: float
    feddyn_alpha: float
    fedem_components: int
    fedfac_layers: str
    fedfac_splits: Literal["channel", "weight"]
    fedfac_share_buffers: bool
    fedfac_variant: Literal["static", "dynamic"]
    fedfac_kappa: str
    fedfac_tau: str
    fedfac_factor: Literal["principal-axis", "eigenvector", "random"]
    fedfac_turned: Literal["difference", "weights"]
    fedfac_mask: Literal["none", "shared", "personal"]
    fedfomo_models: int
    fedfomo_validation: float
    fedkd_energy: float
    fednh_smoothing: float
    fedphp_distillation: float
    fedphp_trainings: int
    fedproto_pull: float
    fedproto_predict: Literal["model", "prototype"]
    fedprox_mu: float
    fedreg_threshold: Literal["average", "median", "max", "second-min"]
    fedreg_augmentation: Literal["simple", "auto", "none"]
    fedreg_personal_start: Literal["generic", "random"]
    fedreg_variant: Literal["full", "same-weights", "one-head", "original-only", "rebalanced-only"]
    fedrep_p_epochs: int
    fedrod_personal_start: Literal["generic", "zero"]
    fedrolex_scale: Literal["auto", "always", "never"]
    fedrolex_mask: bool
    fedselect_share: float
    fedselect_most: float
    fedsplit_split: str
    fedsplit_shared: float
    flexlora_ranks: str
    floco_endpoints: int
    floco_round: int
    floco_radius: float
    gpfl_guidance_weight: float
    gpfl_embedding_decay: float
    heterofl_scale: Literal["auto", "always", "never"]
    heterofl_mask: bool
    ifca_clusters: int
    knn_per_weight: float
    moon_mu: float
    per_fedavg_beta: float
    pfedgate_share: float
    pfedgate_factor: Literal["gate", "double"]
    pfedhn_learning_rate: float
    pfedme_pull: float
    pfedme_steps: int
    pfedme_personal_learning_rate: float
    pfedpara_gamma: float
    pfedsd_distillation: float

class Settings(CommonSettings, total=False):
    output_dir: str
    seed: int
    run_name: str

class SweepSettings(CommonSettings, total=False):
    method: Any
    model: Any
    dataset: Any
    data: Any
    num_clients: Any
