"""Data sets by name, those included that users bring as Python code or as objects."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Hashable, Mapping, NamedTuple, Sequence

import numpy as np

from ...core import references, rng, user_code
from ...core.errors import ConfigError, DataError
from ...core.name_lists import in_short
from ..arrays import are_several, array, attribute, has
from ..dataset import Dataset, contents
from ..named_columns import is_frame, names_in_frame, places
from ..registry import AUTO, DATASETS, DatasetInfo, Loader
from ..settings import DataSettings
from . import tokens
from .categories import with_words
from .columns import (  # fmt: skip
    FileSamples,
    frame_source,
    index_names,
    listed,
    read_frame,
    require_ignored,
    require_no_person,
    to_dataset,
    with_index,
    words_in,
)
from .huggingface import table_source, tables_to_dataset
from .joining import joined
from .npz import as_text, labels_beside, samples_of, vocabulary_of
from .reading_helpers import PARTS, of_parts, part_of
from .table import has_steps, windows_of
from .torch_samples import class_names, is_samples, read_samples, shared_states

# What one data set has: samples that are still to be cut, or those to train on and those to test with.
PAIR, FOUR = ("x", "y"), ("x_train", "y_train", "x_test", "y_test")
VALIDATION = ("x_val", "y_val")
# What scikit-learn calls x and y.
OTHER_PAIR = ("data", "target")
# The classes of Hugging Face's package whose objects are data sets.
TABLES = {("datasets.arrow_dataset", "Dataset"), ("datasets.iterable_dataset", "IterableDataset")}
# Data sets that are kept.
KEPT = 2
# Settings of all that is a table's or a file's, and of windows: arrays have neither.
OF_COLUMNS = tuple(field.name for field in fields(DataSettings) if "columns" in field.metadata["tags"])
OF_WINDOWS = tuple(name for name in OF_COLUMNS if name.startswith("window"))


def entry(name: str) -> tuple[DatasetInfo, Loader]:
    """Return the custom data set that a name refers to; else raise ``ConfigError``."""
    source = user_code.find("dataset", name, DATASETS)
    about = str(attribute(source, "__doc__") or "").strip().partition("\n")[0]
    info = DatasetInfo(
        references.short_name(name), about, "any", "any", "any", name, download=False, owned=True, from_path=True
    )
    return info, CustomLoader(name, source)


class CustomLoader:
    """Makes a data set of a user's object; equal only to a loader of the same object.

    The ``source`` is a :class:`Dataset`; a pandas DataFrame, a Hugging Face Dataset, a torch Dataset or DataLoader, or
    arrays (x, y); a training and a test set of these; what each client has, as a list or as a mapping by the clients'
    names; or a function that returns one of these.
    """

    # A seed is given to it.
    draws = True

    def __init__(self, name: str, source: Any) -> None:
        self.name, self.source = name, source

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CustomLoader) and self.source is other.source

    def __hash__(self) -> int:
        return id(self.source)

    def __call__(self, settings: DataSettings, seed: int = 0) -> Dataset:
        """Make the data set; it is kept, and made again only if the seed matters.

        A function gets ``settings`` and, from the setting ``data``, ``path`` if it takes arguments of these names. What
        it, or a torch Dataset, draws from the generators of Python, NumPy and torch follows from ``seed``.
        """
        # However the samples are divided, they are the same: the function need not be called again.
        folder = str(Path(settings.data_dir).expanduser().absolute())
        settings = replace(settings, partitioner=AUTO, num_clients=0, data_dir=folder)
        for key in ((self, settings), (self, settings, seed)):
            # In another run a function is called again: the files that it reads may have changed.
            if key in _kept and _kept[key][0] == user_code.runs():
                _kept.move_to_end(key)
                return _kept[key][1]
        with user_code.global_state_kept():
            rng.seed_global(seed)
            before = shared_states()
            made = _made(references.short_name(self.name), self, settings)
            drew = shared_states() != before
        if drew:
            made = replace(made, drawn=True)
        key = (self, settings, seed) if drew else (self, settings)
        in_memory = all(isinstance(inputs, np.ndarray) for inputs in (made.x_train, made.x_test) if inputs is not None)
        if key in _kept and in_memory and contents(_kept[key][1]) == contents(made):
            made = _kept[key][1]  # with what was made of it
        _kept[key] = user_code.runs(), made
        while len(_kept) > KEPT:
            _kept.popitem(last=False)
        return made


# Each with the run in which it was read.
_kept: OrderedDict[Hashable, tuple[int, Dataset]] = OrderedDict()


class _Client(NamedTuple):
    """The parts of one client's data, or of all of them together."""

    name: str
    where: str
    train: Any
    test: Any = None
    val: Any = None


def _made(name: str, loader: CustomLoader, settings: DataSettings) -> Dataset:
    source = loader.source
    if callable(source) and not is_samples(source):
        offered = {"settings": settings, "path": settings.data}
        source = user_code.call("dataset", loader.name, source, offered, () if settings.data else ["path"])
    if isinstance(source, Dataset):
        return _checked(source, settings)
    parts = None if isinstance(source, list) else _parts(source, name)
    if parts is not None:
        data = _joined(name, [_Client("", name, *parts)], settings, owned=False)
        for key in source if isinstance(source, Mapping) and len(source) < 3 else ():
            if part_of(str(key)) == PARTS[2]:
                data = replace(data, remarks=(*data.remarks, f"{key} is used as the test set"))
        return data
    _require_no_samples(name, source)
    if isinstance(source, Mapping):
        if len({as_text(key) for key in source}) < len(source):
            raise DataError(f"{name}: two of the clients {', '.join(map(repr, source))} have one name")
        return _joined(name, _clients(name, source), settings)
    if isinstance(source, (list, tuple)):
        _require_clients(name, source)
        return _joined(name, _clients(name, dict(enumerate(source))), settings, named=False)
    hint = ""
    if has(source, "__next__"):
        hint = " (of what gives samples only once it is unclear whether they are samples or clients)"
    message = (
        f"returns {references.article(source)}{hint}; it must return a fedpfl.Dataset, a pandas DataFrame, a torch "
        f"Dataset or DataLoader, arrays (x, y) or ({', '.join(FOUR)}), a tuple of a training and a test set, or a "
        "list or dict of what each client has"
    )
    raise ConfigError("dataset", loader.name, message)


# -- which object is what ----------------------------------------------------------------------------------------------


def _parts(thing: Any, where: str, pair: Any = tuple) -> tuple[Any, ...] | None:
    """Return the training, the test and the validation set that an object is, None where it has none; None for others.

    ``pair`` are the types of a pair; in the place of a data set a list is one of clients.
    """
    if _is_part(thing):
        return thing, None
    if isinstance(thing, Mapping):
        named = {str(key).lower(): value for key, value in thing.items()}
        if named.keys() in (set(FOUR), {*FOUR, *VALIDATION}):
            each = [
                (named[f"x_{part}"], named[f"y_{part}"]) for part in ("train", "test", "val") if f"x_{part}" in named
            ]
            return tuple(each)
        if {*OTHER_PAIR} <= named.keys() and _is_array(named[OTHER_PAIR[0]]):
            has_keys = in_short([*map(str, thing)])
            raise DataError(
                f"{where} is {references.article(thing)} of {has_keys}: give its arrays, (data, target); "
                "fedpfl.Dataset.of takes names of classes as well"
            )
        if {*PAIR} < named.keys() and _is_array(named["x"]):
            raise DataError(
                f"{where} has {', '.join(map(str, thing))}; arrays are x, y or {', '.join(FOUR)}, and fedpfl.Dataset "
                "takes owners and names as well"
            )
        return _named_parts(thing, where)
    if not isinstance(thing, pair):
        return None
    if len(thing) == len(FOUR) and all(map(_is_array, thing)):
        shapes = [np.shape(one) for one in thing]
        of_train, of_test, *others = (shape[:1] for shape in shapes)
        if of_train != of_test and others == [of_train, of_test] and shapes[0][1:] == shapes[1][1:]:
            order = f"must be in the order {', '.join(FOUR)}, and this is that of scikit-learn's train_test_split"
            raise DataError(f"{where}: four arrays {order}")
    if len(thing) == len(FOUR) and _is_pair(thing[:2]) and _is_pair(thing[2:]):
        return tuple(thing[:2]), tuple(thing[2:])
    if len(thing) == 2 and all(map(_is_part, thing)):
        return thing[0], thing[1]
    return None


def _named_parts(thing: Mapping[Any, Any], where: str) -> tuple[Any, ...] | None:
    """Return a mapping's parts under names such as train and test; None if its keys are no such names."""
    keys: dict[str, Any] = {}
    for key in thing:
        kind = part_of(str(key)) or ""
        if kind and kind in keys:
            raise DataError(f"{where}: {' and '.join(map(str, thing))}: two of these are one part, {kind}")
        keys[kind] = key
    if "" in keys:
        if named := [str(keys[part]) for part in ("train", "test") if part in keys]:
            raise DataError(
                f"{where}: {', '.join(map(str, thing))}: {'is' if len(named) == 1 else 'are'} {' and '.join(named)} of "
                "one data set, or clients? Its parts are called train, val and test, and clients otherwise"
            )
        return None
    if "train" not in keys:
        if keys:
            raise DataError(f"{where} has {' and '.join(map(str, thing))}, and no train")
        return None
    order = sorted(keys, key=PARTS.index)
    parts = [thing[keys[part]] for part in order]
    for part in parts:
        if isinstance(part, (list, Mapping)) and not _is_part(part):
            _require_no_samples(f"{where}: a part of it", part)
            raise DataError(
                f"{where}: train and test are {references.article(part)} each; of several clients give each one's "
                "pair, as a list or dict of (training, test)"
            )
    return (*parts, *([None] if len(parts) < 2 else []))


def _require_clients(name: str, source: Sequence[Any]) -> None:
    """Refuse tuples that may be one data set as well as the clients of several."""
    if not isinstance(source, tuple):
        return
    if len(source) == 2 and all(isinstance(one, (list, Mapping)) for one in source):
        _require_no_samples(f"{name}: its first part", source[0])
        raise DataError(
            f"{name}: a tuple of two {references.article(source[0]).split()[-1]}s: of two clients give a list; of the "
            "clients' training and test sets a list of pairs, list(zip(training, test))"
        )
    if len(source) == 2 and _is_array(source[0]):
        pair = " and ".join(map(references.article, source))
        raise DataError(f"{name}: a pair of {pair}: y must be an array or a list of labels")
    if len(source) == 3 and all(map(_is_part, source)):
        raise DataError(
            f"{name}: a tuple of three data sets: three clients are a list; training, validation and test set are a "
            'dict {"train": …, "val": …, "test": …}'
        )


def _require_no_samples(where: str, source: Any) -> None:
    """Refuse a list of single samples, in whose place are what clients have, or one client's arrays."""
    items = [*source.values()] if isinstance(source, Mapping) else source
    if isinstance(items, (list, tuple)) and items and all(map(_is_one_sample, items)):
        raise DataError(
            f"{where} is {references.article(source)} of single samples (x, y): give arrays of all of them, "
            "(numpy.stack(xs), ys) for xs, ys = zip(*samples), or a torch Dataset; a list has an entry for each client"
        )


def _is_one_sample(thing: Any) -> bool:
    """Tell whether an object is a pair, or a dict of x and y, with one number or word as y."""
    pair = _pair(thing)
    if not isinstance(pair, (list, tuple)) or len(pair) != len(PAIR):
        return False
    y = pair[1]
    return isinstance(y, (bool, int, float, str, bytes)) or (has(y, "__array__") and attribute(y, "shape") == ())


def _clients(name: str, parts_by_client: Mapping[Any, Any]) -> list[_Client]:
    """Return the parts of each client, by their names; a ``DataError`` says whose is wrong."""
    if not parts_by_client:
        raise DataError(f"{name}: the list of clients is empty")
    clients = []
    for client_name, client in parts_by_client.items():
        where = f"{name}: client {client_name}"
        _require_no_samples(where, client)
        parts = _parts(client, where, (list, tuple))
        if parts is None and isinstance(client, (list, tuple)) and len(client) in (len(PAIR), len(FOUR)):
            parts = tuple(client[:2]), tuple(client[2:]) or None
        if parts is None and isinstance(client, Mapping):
            has = ", ".join(map(str, client)) or "nothing"
            raise DataError(f"{where} has {has}; it must have {', '.join(FOUR)}, or x, y")
        if parts is None:
            raise DataError(
                f"{where} is {references.article(client)}; it must be ({', '.join(FOUR)}), or (x, y) to be cut"
            )
        clients.append(_Client(as_text(client_name), where, *parts))
    for part, word in (("test", "test"), ("val", "validation")):
        lacking = [client for client in clients if getattr(client, part) is None]
        if lacking and len(lacking) < len(clients):
            raise DataError(f"{lacking[0].where} has no {word} set, and others have one")
    return clients


def _is_part(thing: Any) -> bool:
    """Tell whether an object is one set of samples."""
    if isinstance(thing, Mapping):
        named = {str(key).lower(): value for key, value in thing.items()}
        return named.keys() == set(PAIR) and _is_pair([named["x"], named["y"]])
    if isinstance(thing, (list, tuple)):
        return len(thing) == len(PAIR) and _is_pair(thing)
    return is_frame(thing) or _is_table(thing) or is_samples(thing)


def _is_pair(thing: Sequence[Any]) -> bool:
    """Tell whether two objects are arrays x and y, perhaps as lists or as DataFrames."""
    x, y = thing
    if are_several(x) and _is_array(y) and not is_frame(y):
        return True  # which is refused where it is read
    if is_frame(x) and is_frame(y):
        if {*x.columns} == {*y.columns}:
            return False
        if len(y.columns) == 1 and len(x) == len(y):
            return True
        raise DataError(
            f"two DataFrames with other columns ({', '.join(map(str, [*x.columns][:4]))}, … and "
            f"{', '.join(map(str, [*y.columns][:4]))}, …): training and test set must have the same ones; labels are a "
            "Series"
        )
    if is_frame(y) and not is_frame(x):  # one column of labels, or a column for each target
        return _is_array(x)
    if isinstance(y, list) and any(has(label, "__len__") and not isinstance(label, str) for label in y[:1]):
        return attribute(y[0], "shape") == () and _is_array(x)  # single numbers of torch
    # A list of other things than numbers and words is refused where it is read.
    return _is_array(x) and (_is_array(y) or (isinstance(y, list) and len(y) > 0 and not is_samples(y[0])))


def _is_array(thing: Any) -> bool:
    """Tell whether an object is an array, or a list of numbers, words or arrays."""
    if isinstance(thing, list):
        while isinstance(thing, (list, tuple)) and thing:
            thing = thing[0]
        if isinstance(thing, (bool, int, float, str)):
            return True
    return not is_samples(thing) and (has(thing, "__array__") or has(thing, "toarray"))


def _is_table(thing: object) -> bool:
    """Tell whether an object is a Hugging Face Dataset, without importing their package."""
    kinds = {(kind.__module__, kind.__name__) for kind in type(thing).__mro__}
    return not kinds.isdisjoint(TABLES)


# -- what they hold ----------------------------------------------------------------------------------------------------


def _joined(
    name: str, clients: list[_Client], settings: DataSettings, owned: bool = True, named: bool = True
) -> Dataset:
    """Join what clients have; not ``owned``: it is one data set; not ``named``: clients have only numbers."""
    sets = [part for client in clients for part in client[2:] if part is not None]
    read = _of_tables if all(map(is_frame, sets)) or all(map(_is_table, sets)) else _of_arrays
    if read is _of_arrays and any(is_frame(part) or _is_table(part) for part in sets):
        shown = sorted({references.article(part) for part in sets})
        raise DataError(f"{name}: its parts are {' and '.join(shown)}; all must be of one kind")
    said: dict[str, None] = {}
    data_sets = read(name, clients, settings, owned, said)
    data = data_sets[0]
    if owned:
        where, called = [client.where for client in clients], [f"client {client.name}" for client in clients]
        data = joined(name, data_sets, where, called, tuple(client.name for client in clients) if named else ())
    return replace(data, remarks=(*data.remarks, *said))


def _of_tables(
    name: str, clients: list[_Client], settings: DataSettings, owned: bool, said: dict[str, None]
) -> list[Dataset]:
    """Read DataFrames, or Hugging Face Datasets, whose columns go by their names."""
    clients = [
        client._replace(**{part: with_index(getattr(client, part), settings) for part in PARTS}) for client in clients
    ]
    indexes = [name for client in clients for part in client[2:] for name in index_names(part)]
    if indexes:
        told = f"{in_short([*dict.fromkeys(map(str, indexes))])} in the index of a DataFrame is no column"
        said[f"{told}, and not used: reset_index() makes it one"] = None
    sources = []
    column = settings.client_column or "client"
    for client in clients:
        for part in (part for part in client[2:] if part is not None):
            source = frame_source(part) if is_frame(part) else table_source(Path(client.where), part, settings)
            if owned and column in source.names:
                raise DataError(f"{client.where} has a column {column!r}, and is one client: leave the column out")
            sources.append(source)
    require_ignored(settings, (label for source in sources for label in source.names), name)
    settings = with_words(settings, lambda label: words_in(sources, label), name)
    if owned and settings.client_column:  # each is one client, and has no column of them
        settings = replace(settings, client_column="client")
    if is_frame(clients[0].train):
        said.update(dict.fromkeys(_not_used(settings, ("image_size",), "a DataFrame")))
    else:
        said.update(dict.fromkeys(_not_used(settings, OF_WINDOWS, "a Hugging Face Dataset")))
    return [_of_table(client, settings) for client in clients]


def _of_table(client: _Client, settings: DataSettings) -> Dataset:
    parts = {word: part for word, part in zip(PARTS, client[2:]) if part is not None}
    if not is_frame(client.train):
        return tables_to_dataset(Path(client.where), parts, settings)
    called = {word: client.where if word == "train" else f"{client.where}, {word} set" for word in parts}
    samples = [_frame_samples(frame, called[word], settings) for word, frame in parts.items()]
    return to_dataset(samples, client.where, settings, settings.num_classes or None, alone=False)


def _frame_samples(frame: Any, where: str, settings: DataSettings) -> FileSamples:
    """Return the samples of a DataFrame, whose rows are steps of time where a setting or column says so."""
    steps = has_steps(settings, frame.columns)
    table = read_frame(frame, where, settings, windows=steps)
    return windows_of(table, settings) if steps else table


def _of_arrays(
    name: str, clients: list[_Client], settings: DataSettings, owned: bool, said: dict[str, None]
) -> list[Dataset]:
    """Read arrays, or samples that objects give one by one; what there is to say becomes a key of ``said``."""
    said.update(dict.fromkeys(_not_used(settings)))
    suffixes = ("",) if clients[0].test is None else ("_train", "_test", "_val")
    columns, feature_names, label_names = [], [], []
    for client in clients:
        arrays: list[np.ndarray] = []
        pairs = [_pair(part) for part in client[2:] if part is not None]
        columns_of_x = [] if is_samples(pairs[0]) else names_in_frame(pairs[0][0])
        for suffix, pair in zip(suffixes, pairs):
            arrays += _arrays_of(pair, client.where, suffix, columns_of_x, said, settings)
        # Of a client that is only tested the tests count.
        counted = arrays[0] if len(arrays[0]) or len(pairs) == 1 else arrays[2]
        if len(counted) < settings.min_samples:
            raise DataError(f"{client.where} has {len(arrays[0])} {'training ' * (len(pairs) > 1)}samples, "
                            f"min-samples is {settings.min_samples}")  # fmt: skip
        columns.append(arrays)
        feature_names.append(tuple(columns_of_x))
        label_names.append([class_names(pair, client.where) if is_samples(pair) else () for pair in pairs])
    columns, names = _by_name(clients, columns, label_names)
    listed_names = tuple(listed(settings.class_names))
    if names and listed_names not in ((), names):
        message = f"must be empty: the data set's own classes are {in_short(names)}"
        raise ConfigError("class-names", settings.class_names, message)
    there = np.unique(np.concatenate([y for arrays in columns for y in arrays[1::2]])) if names else ()
    if missing := [repr(word) for number, word in enumerate(names) if number not in there]:
        told = f"no label is {in_short(missing)}, of its classes {in_short(names)}"
        said[f"{told}: are its labels still the numbers of these classes?"] = None
    _require_no_classes(name, columns[0][1], settings)
    if settings.tokenizer:
        vocabulary = tokens.find(settings.tokenizer).vocabulary
        feature_names = [tokens.feature_names(settings.tokenizer)] * len(clients)
    else:
        vocabulary = max(vocabulary_of(x, settings) for arrays in columns for x in arrays[::2])
    return [
        of_parts(
            client.where, arrays[::2], arrays[1::2], num_classes=settings.num_classes, vocabulary=vocabulary,
            class_names=listed_names or names, feature_names=features,
        )
        for client, arrays, features in zip(clients, columns, feature_names)
    ]  # fmt: skip


def _by_name(
    clients: list[_Client], columns: list[list[np.ndarray]], label_names: list[list[tuple[str, ...]]]
) -> tuple[list[list[np.ndarray]], tuple[str, ...]]:
    """Return samples and labels whose numbers mean the same classes, or are names, and the names of the numbers.

    ``label_names`` are those that each client's parts have for their labels.
    """
    every = [names for parts in label_names for names in parts]
    labels = [y for arrays in columns for y in arrays[1::2]]
    if any(y.dtype.kind != "i" or y.max(initial=0) >= len(names) for y, names in zip(labels, every) if names):
        return columns, ()  # a wrapper has made others of them
    different = {names for names in every if names}
    if len(different) < 2:
        return columns, next(iter(different), ())
    for client, parts in zip(clients, label_names):
        if () in parts:
            raise DataError(
                f"{client.where} has numbers as labels, which mean different classes for the others: give names"
            )
    named = [[np.array(names)[numbers] for numbers, names in zip(arrays[1::2], parts)]
             for arrays, parts in zip(columns, label_names)]  # fmt: skip
    return [[*sum(zip(arrays[::2], ys), ())] for arrays, ys in zip(columns, named)], ()


def _pair(part: Any) -> Any:
    """Return x and y of a mapping of them; another object as it is."""
    if not isinstance(part, Mapping):
        return part
    named = {str(key).lower(): value for key, value in part.items()}
    return tuple(named.get(word) for word in PAIR)


def _require_no_classes(name: str, y: np.ndarray, settings: DataSettings) -> None:
    if y.dtype.kind == "f" and settings.num_classes not in (0, y.shape[1]):
        message = f"must be 0 for {name}, whose labels are numbers to predict; of classes they are names or whole"
        raise ConfigError("num-classes", settings.num_classes, message)


def _arrays_of(
    part: Any, where: str, suffix: str, columns: list[str], said: dict[str, None], settings: DataSettings
) -> tuple[np.ndarray, np.ndarray]:
    """Return x and y of one set of samples, checked and in the inner layout, the columns of x in this order."""
    if is_samples(part):
        whose = f"{where}{ {'_train': ', training', '_test': ', test', '_val': ', validation'}.get(suffix, '') }"
        x, y = read_samples(part, whose, said, settings)
        return (tokens.of_array(x, settings.tokenizer, whose, said) if settings.tokenizer else x), y
    x, y = part
    of_x, names = f"{where}: x{suffix}", names_in_frame(x)
    _require_one_order(x, y, where)
    require_no_person(of_x, names, settings, x)
    if names and columns:
        x = x.iloc[:, places(names, columns, of_x, "x_train")]
    x, y = array(x, of_x), array(y, f"{where}: y{suffix}")
    if settings.tokenizer and settings.tokens:
        return tokens.of_pairs(x, y, settings.tokenizer, f"{where}: x{suffix}, y{suffix}", said)
    if settings.tokenizer:
        x = tokens.of_array(x, settings.tokenizer, of_x, said)
    else:
        x = samples_of(x, of_x, vocabulary_of(x, settings), planes=True, empty=bool(suffix), gaps=settings.fills_gaps)
    return x, labels_beside(x, y, f"{where}: y{suffix}", settings)


def _not_used(settings: DataSettings, keys: Sequence[str] = OF_COLUMNS, what: str = "arrays") -> Sequence[str]:
    """Return a remark on settings that are not at their defaults and say nothing of these data."""
    changed = [key for key in keys if getattr(settings, key) not in ("", getattr(DataSettings, key))]
    return [f"not used with {what}: {', '.join(changed).replace('_', '-')}"] if changed else []


def _require_one_order(x: Any, y: Any, where: str) -> None:
    """Refuse a DataFrame and a Series whose indexes have the same rows in another order: pandas goes by them."""
    indexes = [thing.index for thing in (x, y) if has(thing, "iloc")]
    if len(indexes) == 2 and not indexes[0].equals(indexes[1]) and {*indexes[0]} == {*indexes[1]}:
        raise DataError(
            f"{where}: the indexes of x and y have the same rows in another order: give y.loc[x.index], or without "
            "indexes x.to_numpy() and y.to_numpy()"
        )


def _checked(data: Dataset, settings: DataSettings) -> Dataset:
    """Bring a data set's arrays into the inner layout."""
    data = Dataset.of(**vars(data))
    unused = _not_used(settings, (*OF_COLUMNS, "class_names", "tokenizer"))
    changes: dict[str, Any] = {"remarks": (*data.remarks, *unused)}
    for part in ("train", "test"):
        x, y = getattr(data, f"x_{part}"), getattr(data, f"y_{part}")
        if (x is None) != (y is None):
            raise DataError(f"{data.name}: has {'y' if x is None else 'x'}_{part} without the other one")
        if getattr(data, f"client_{part}") is not None and (x is None or data.client_train is None):
            lacks = "x_test" if x is None else "client_train"
            raise DataError(f"{data.name}: has client_{part} without {lacks}")
        if x is None:
            continue
        where = f"{data.name}: {{}}_{part}"
        changes[f"x_{part}"] = samples_of(x, where.format("x"), data.vocabulary, planes=True, gaps=settings.fills_gaps)
        changes[f"y_{part}"] = labels_beside(changes[f"x_{part}"], y, where.format("y"), settings, names=False)
        owners = getattr(data, f"client_{part}")
        if owners is not None:
            if owners.dtype.kind not in "iu":
                message = "must be whole numbers from 0, the owner of each sample"
                raise DataError(f"{data.name}: client_{part} is {owners.dtype}: {message}")
            if owners.shape != (len(x),):
                message = f"must be one number for each of {len(x)} samples"
                raise DataError(f"{data.name}: client_{part} has the shape {owners.shape}: {message}")
            if wrong := [owner for owner in (owners.min(initial=0), owners.max(initial=0)) if not 0 <= owner < 2**63]:
                raise DataError(f"{data.name}: client_{part} has owner {wrong[0]}: owners are numbered from 0")
            changes[f"client_{part}"] = owners.astype(np.int64)
            if data.client_names and owners.max(initial=0) >= len(data.client_names):
                raise DataError(
                    f"{data.name}: client_{part} has owner {owners.max()}, and client_names {len(data.client_names)} "
                    "names: must be one for each owner from 0"
                )
    if data.client_names and data.client_train is None:
        raise DataError(f"{data.name}: has client_names without client_train")
    if len(set(data.client_names)) < len(data.client_names):
        twice = next(word for word in data.client_names if data.client_names.count(word) > 1)
        raise DataError(f"{data.name}: client_names has {twice!r} twice: owners need different names")
    features = changes["x_train"].shape[1]
    if data.feature_names and not data.vocabulary and not data.is_image and len(data.feature_names) != features:
        raise DataError(
            f"{data.name}: feature_names has {len(data.feature_names)} names, and x_train {features} features"
        )
    if data.client_train is None and isinstance(changes["x_train"], np.ndarray):
        require_no_person(f"{data.name}: x_train", data.feature_names, settings, changes["x_train"])
    if changes["x_train"].shape[1:] != changes.get("x_test", changes["x_train"]).shape[1:]:
        raise DataError(f"{data.name}: x_train and x_test must hold samples of one shape")
    _require_no_classes(data.name, changes["y_train"], settings)
    if settings.targets and not data.has_targets:
        changes.update(num_classes=0, class_names=())
    if settings.num_classes:
        changes["num_classes"] = settings.num_classes
        changes["class_names"] = () if data.unnamed else data.class_names
    return Dataset.of(**{**vars(data), **changes})
