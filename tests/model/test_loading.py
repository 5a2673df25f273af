"""What a model is, told from its files; manifests; and errors that say what to do."""

import hashlib
import json
import os
import shutil
import struct
import subprocess
import sys
from functools import partial
from pathlib import Path

import mlx.core as mx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from model_families import (
    EVERY_FAMILY,
    FAMILIES,
    config_of,
    make_model,
    random_weights,
    write_model,
)
from model_rings import Ring
from sealring_model.errors import LoadError
from sealring_model.loading.assemble import WeightReader, load_shard, load_stage
from sealring_model.loading.model_folder import NO_LIMIT, describe, find
from sealring_model.loading.structure import describe_engine, structure_of
from sealring_model.loading.weights import (
    ENDS,
    FOREIGN,
    MANIFEST,
    owner,
    read_entries,
    write_manifest,
)
from sealring_model.machine import memory_budget
from sealring_model.mlx_lm_import import mlx_lm
from sealring_protocol.codec.encoding import decode_local, encode
from sealring_protocol.codec.tensor import DType

PROMPT = [(5 * i * i + 11 * i) % 251 for i in range(20)]


@pytest.fixture
def folder(tmp_path):
    return make_model(tmp_path / "m", "llama", shards=2)


def rewrite(file, change):
    value = json.loads(file.read_text())
    change(value)
    file.write_text(json.dumps(value))


# ------------------------------------------------------------------- describe


@pytest.mark.parametrize("family", EVERY_FAMILY)
def test_describe_agrees_with_what_is_loaded(models, family):
    info = describe(models[family])
    count = FAMILIES[family]["num_hidden_layers"]
    whole = load_stage(info, 0, count)
    assert info.size == whole.held == whole.read
    for layer in range(1, count):
        assert load_stage(info, layer, layer + 1).held == info.layers[layer]
    assert load_stage(info, 0, 1).held == info.ends + info.layers[0]
    assert (info.dtype, info.hidden, info.vocabulary) == (DType.F32, 64, 256)
    assert info.context == 4096
    assert info.trimmable == whole.trimmable
    message = describe_engine(info, structure_of(info), 123)
    assert decode_local(b"".join(encode(message))) == message


def test_one_file_or_many_make_no_difference(tmp_path):
    one, two = (make_model(tmp_path / str(n), "qwen3", shards=n) for n in (1, 3))
    assert describe(one).digest == describe(two).digest
    assert describe(one).layers == describe(two).layers


@pytest.mark.parametrize(("stored", "told"), [("bfloat16", DType.BF16), ("float16", DType.F16)])
def test_hidden_states_have_the_dtype_of_the_embedding(tmp_path, stored, told):
    config = config_of("qwen3")
    weights = {k: v.astype(getattr(mx, stored)) for k, v in random_weights(config).items()}
    folder = write_model(tmp_path / "half", config, weights)
    assert describe(folder).dtype is told
    ring = Ring(folder, (0, 1, 4))
    assert len(ring.generate(PROMPT, 4)) == 4


def test_a_quantized_model_can_be_described_and_split(tmp_path):
    from mlx import nn
    from mlx.utils import tree_flatten
    from model_families import reference_model, reference_tokens

    source = make_model(tmp_path / "f32", "llama")
    model = reference_model(source)
    nn.quantize(model, group_size=32, bits=4)
    config = {**config_of("llama"), "quantization": {"group_size": 32, "bits": 4}}
    folder = write_model(tmp_path / "q", config, dict(tree_flatten(model.parameters())))
    info = describe(folder)
    assert info.dtype is DType.F32
    assert info.size < describe(source).size / 3
    expected = reference_tokens(reference_model(folder), PROMPT, 12)
    assert Ring(folder, (0, 2, 5)).generate(PROMPT, 12) == expected


def test_describing_takes_no_mlx_and_no_mlx_lm(folder):
    code = (
        "import sys; from pathlib import Path; "
        "from sealring_model.loading.model_folder import describe; "
        "describe(Path(sys.argv[1])); from sealring_model.loading.weights import write_manifest; "
        "write_manifest(Path(sys.argv[1])); "
        "assert not {m.split('.')[0] for m in sys.modules} & {'mlx', 'mlx_lm', 'transformers'}"
    )
    subprocess.run([sys.executable, "-c", code, str(folder)], check=True)


@pytest.mark.parametrize(
    ("files", "says"),
    [
        (
            ["adapters.safetensors", "adapter_config.json"],
            "LoRA adapter .*mlx_lm.fuse --model",
        ),
        (["config.json", "pytorch_model.bin"], "PyTorch weights .*mlx_lm.convert --hf-path"),
        (["config.json", "model.Q4_K_M.gguf"], "GGUF file, .*mlx-community"),
        (["config.json", "consolidated.00.safetensors"], "Mistral's own layout .*mlx-community"),
        (["config.json", "weights.safetensors"], "rename weights.safetensors"),
    ],
)
def test_a_folder_in_another_format_says_what_it_is_and_what_to_do(tmp_path, files, says):
    for name in files:
        (tmp_path / name).write_text("{}")
    with pytest.raises(LoadError, match=says):
        describe(tmp_path)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("model.gguf", "GGUF file"),
        ("model.safetensors", "give the folder that it is in"),
        ("model.txt", "is a file; a model is a folder"),
    ],
)
def test_a_file_says_what_it_is(tmp_path, name, says):
    (tmp_path / name).write_text("")
    with pytest.raises(LoadError, match=says):
        find(str(tmp_path / name))


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("model.layers.0.mlp.up_proj.weight", 0),
        ("model.layers.11.self_attn.q_proj.scales", 11),
        ("transformer.h.3.attn.weight", 3),
        ("language_model.model.layers.2.norm.weight", 2),
        ("model.layers.12.mlp.up_proj.weight", FOREIGN),
        ("model.embed_tokens.weight", ENDS),
        ("lm_head.weight", ENDS),
        ("model.norm.weight", ENDS),
        ("vision_tower.encoder.layers.3.weight", FOREIGN),
        ("model.visual.blocks.1.weight", FOREIGN),
        ("mtp.layers.0.weight", FOREIGN),
    ],
)
def test_names_tell_the_layer(name, place):
    assert owner(name, 12) == place


# ---------------------------------------------------------------- what is wrong


def cut_short(folder):
    file = folder / "model-00002-of-00002.safetensors"
    file.write_bytes(file.read_bytes()[:-1])


def header_lies(folder):
    file = folder / "model-00001-of-00002.safetensors"
    data = file.read_bytes()
    file.write_bytes(struct.pack("<Q", 1 << 62) + data[8:])


POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 7\n"

BROKEN = {
    "config missing": (lambda f: (f / "config.json").unlink(), "cannot read .*config.json"),
    "config no json": (lambda f: (f / "config.json").write_text("{"), "is not JSON"),
    "config no object": (lambda f: (f / "config.json").write_text("[]"), "not hold a JSON object"),
    "layers in quotes": (
        lambda f: rewrite(f / "config.json", lambda c: c.update(num_hidden_layers="5")),
        'has "5" for num_hidden_layers, which is no whole number above 0',
    ),
    "half a layer": (
        lambda f: rewrite(f / "config.json", lambda c: c.update(num_hidden_layers=4.5)),
        "has 4.5 for num_hidden_layers",
    ),
    "no kind": (
        lambda f: rewrite(f / "config.json", lambda c: c.pop("model_type")),
        "has no model_type",
    ),
    "code of its own": (
        lambda f: rewrite(f / "config.json", lambda c: c.update(model_file="own.py")),
        r"code of its own \(own.py\), which sealring does not run",
    ),
    "weights not fetched": (
        lambda f: (f / "model-00002-of-00002.safetensors").write_text(POINTER),
        "00002-of-00002.safetensors has not been fetched: .*git lfs pull",
    ),
    "config not fetched": (
        lambda f: (f / "config.json").write_text(POINTER),
        "config.json has not been fetched: .*git lfs pull",
    ),
    "more layers": (
        lambda f: rewrite(f / "config.json", lambda c: c.update(num_hidden_layers=6)),
        "no tensor of layer 5",
    ),
    "too many layers": (
        lambda f: rewrite(f / "config.json", lambda c: c.update(num_hidden_layers=2000)),
        "limit is 1024",
    ),
    "layers of another part": (
        lambda f: rewrite(
            f / "config.json", lambda c: c.update(text_config={**c}, num_hidden_layers=10**9)
        ),
        "config.json has 1e.09 for num_hidden_layers; the limit is 1024",
    ),
    "labels": (
        lambda f: rewrite(f / "config.json", lambda c: c.update(num_labels=10_000_000)),
        "config.json has 1e.07 for num_labels; the limit is 131072",
    ),
    "a file missing": (
        lambda f: (f / "model-00002-of-00002.safetensors").unlink(),
        "incomplete: model-00002-of-00002.safetensors is missing",
    ),
    "all files missing": (
        lambda f: [file.unlink() for file in f.glob("model*")],
        r"no model\*.safetensors",
    ),
    "cut short": (cut_short, "is cut short"),
    "header lies": (header_lies, "no safetensors file"),
    "manifest no json": (lambda f: (f / MANIFEST).write_text("nope"), "is not JSON"),
    "manifest of later": (lambda f: (f / MANIFEST).write_text('{"version": 2}'), "version 1"),
    "manifest malformed": (
        lambda f: (f / MANIFEST).write_text('{"version": 1, "tensors": {"a": "zz"}}'),
        "hash of tensor a is malformed",
    ),
    "manifest of another": (
        lambda f: (f / MANIFEST).write_text(json.dumps({"version": 1, "tensors": {"a": "0" * 64}})),
        "names tensor a, which the weights lack",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_model_is_told_in_words(folder, case):
    spoil, message = BROKEN[case]
    spoil(folder)
    with pytest.raises(LoadError, match=message):
        describe(folder)


CONTEXTS = {
    "a number": ({"max_position_embeddings": 4096}, 4096),
    "a float": ({"max_position_embeddings": 40960.0}, 40960),
    "nothing": ({"max_position_embeddings": None}, NO_LIMIT),
    "missing": ({}, NO_LIMIT),
    "a text": ({"max_position_embeddings": "4096"}, NO_LIMIT),
    "true": ({"max_position_embeddings": True}, NO_LIMIT),
    "infinite": ({"max_position_embeddings": float("inf")}, NO_LIMIT),
    "below nothing": ({"max_position_embeddings": -1}, NO_LIMIT),
    "GPT-2's name": ({"n_positions": 1024, "n_ctx": 1024}, 1024),
    "OLMo's name": ({"max_sequence_length": 2048}, 2048),
    "DBRX's name": ({"max_seq_len": 32768}, 32768),
    "ChatGLM's name": ({"seq_length": 131072}, 131072),
    "Cohere's": ({"max_position_embeddings": 8192, "model_max_length": 131072}, 131072),
    "no length of Cohere's": ({"max_position_embeddings": 8, "model_max_length": 1e30}, 8),
    "null, and another": ({"max_position_embeddings": None, "n_ctx": 512}, 512),
    "in the part for text": ({"text_config": {"max_position_embeddings": 300}}, 300),
    "made longer by YaRN": (
        {
            "max_position_embeddings": 40960,
            "rope_scaling": {
                "rope_type": "yarn",
                "factor": 4.0,
                "original_max_position_embeddings": 32768,
            },
        },
        131072,
    ),
    "as long as YaRN makes it": (
        {
            "max_position_embeddings": 163840,
            "rope_scaling": {
                "type": "yarn",
                "factor": 40,
                "original_max_position_embeddings": 4096,
            },
        },
        163840,
    ),
    "YaRN of no number": (
        {
            "max_position_embeddings": 64,
            "rope_parameters": {"rope_type": "yarn", "factor": "x"},
        },
        64,
    ),
}


@pytest.mark.parametrize("case", CONTEXTS)
def test_the_context_is_what_the_configuration_means(folder, case):
    given, context = CONTEXTS[case]

    def change(config):
        config.pop("max_position_embeddings")
        config.update(given)

    rewrite(folder / "config.json", change)
    info = describe(folder)
    assert info.context == context
    assert any("no limit of it is known" in note for note in info.notes) is (context == NO_LIMIT)


def zeroed(folder, share):
    """Have the last *share* of the last shard be zeros."""
    file = shards_of(folder)[-1]
    data = file.read_bytes()
    kept = int(len(data) * (1 - share))
    file.write_bytes(data[:kept].ljust(len(data), b"\0"))
    return describe(folder)


@pytest.mark.parametrize("share", [0.9, 0.5])
def test_a_file_whose_end_is_zeros_is_named(folder, share):
    info = zeroed(folder, share)
    with pytest.raises(LoadError, match=r"00002-of-00002.safetensors is nothing but zeros") as told:
        describe_engine(info, structure_of(info), 0)
    assert "fetch model-00002-of-00002.safetensors again" in told.value.cure
    trusted = describe(folder, trusted=True)
    assert describe_engine(trusted, structure_of(trusted), 0)


def test_a_model_may_have_zeros(folder):
    """Biases, norms, and a part of a layer that was added to it and is not trained yet."""
    for file in shards_of(folder):
        tensors = mx.load(str(file))
        for name, array in tensors.items():
            if array.ndim < 2 or "o_proj" in name or "down_proj" in name:
                tensors[name] = mx.zeros_like(array)
        mx.eval(tensors)
        mx.save_safetensors(str(file), tensors)
    info = describe(folder)
    assert describe_engine(info, structure_of(info), 0)


def shards_of(folder):
    return sorted(folder.glob("model-*.safetensors"))


def other_values(file, to):
    """Write *file* with other values as *to*."""
    tensors = {name: array + 1 for name, array in mx.load(str(file)).items()}
    mx.save_safetensors(str(to), tensors)


def whole(folder, shards, add=0):
    """Write all *shards* as one file, with other values if something is to be *add*ed."""
    tensors = {}
    for shard in shards:
        tensors |= {name: array + add for name, array in mx.load(str(shard)).items()}
    mx.save_safetensors(str(folder / "model.safetensors"), tensors)


def index(folder, **places):
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))


TWICE = {
    "an older file": (
        lambda f, shards: other_values(shards[0], f / "model_old.safetensors"),
        "is in model-00001-of-00002.safetensors and in model_old.safetensors, with other values",
        "move model_old.safetensors out of the folder",
    ),
    "a whole file of other values beside shards": (
        lambda f, shards: other_values(shards[0], f / "model.safetensors"),
        "is in model-00001-of-00002.safetensors and in model.safetensors",
        "move model.safetensors out of the folder",
    ),
    "an older file, and no index": (
        lambda f, shards: (
            (f / "model.safetensors.index.json").unlink(missing_ok=True),
            other_values(shards[1], f / "model_old.safetensors"),
        ),
        "is in model-00002-of-00002.safetensors and in model_old.safetensors",
        "move one of the two out of the folder",
    ),
    "shards of other values beside a whole file, and no index": (
        lambda f, shards: (
            whole(f, shards, add=1),
            (f / "model.safetensors.index.json").unlink(missing_ok=True),
        ),
        "and in model.safetensors",
        "move model-00001-of-00002.safetensors, model-00002-of-00002.safetensors out",
    ),
}


@pytest.mark.parametrize("case", TWICE)
def test_weights_that_are_there_twice_are_named_with_their_cure(folder, case):
    spoil, what, cure = TWICE[case]
    spoil(folder, shards_of(folder))
    with pytest.raises(LoadError) as caught:
        describe(folder)
    assert what in caught.value.what
    assert cure in caught.value.cure


ODD = {
    "shards beside a whole file of the same": (
        whole,
        "model.safetensors has the same tensors as model-00001-of-00002.safetensors",
    ),
    "a copy of a shard": (
        lambda f, shards: shutil.copy(shards[0], f / "model copy.safetensors"),
        "model-00001-of-00002.safetensors has the same tensors as model copy.safetensors",
    ),
    "an index of other files": (
        lambda f, shards: index(f, **{"model.norm.weight": "model-00007-of-00009.safetensors"}),
        "names files that are not there, such as model-00007-of-00009.safetensors",
    ),
    "an index that names a file whose tensors are elsewhere": (
        lambda f, shards: index(
            f, **{"model.norm.weight": "model-00007.safetensors", "other": shards[0].name}
        ),
        "names files that are not there, such as model-00007.safetensors",
    ),
    "an index that names a file of another modality": (
        lambda f, shards: index(
            f, **{"vision_tower.x.weight": "model-00003.safetensors", "other": shards[0].name}
        ),
        "names files that are not there, such as model-00003.safetensors",
    ),
}


@pytest.mark.parametrize("case", ODD)
def test_what_mlx_lm_loads_loads(folder, case):
    before = describe(folder)
    spoil, note = ODD[case]
    spoil(folder, shards_of(folder))
    info = describe(folder)
    assert info.digest == before.digest
    assert any(note in told for told in info.notes)
    assert load_stage(info, 0, len(info.layers)).read == before.size


def test_a_model_that_mlx_lm_does_not_know(folder):
    rewrite(folder / "config.json", lambda c: c.update(model_type="perceptron"))
    with pytest.raises(LoadError, match="perceptron"):
        load_stage(describe(folder), 0, 2)


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"model_type": "gpt2", "n_embd": 64, "n_head": 3}, "AssertionError: n_embd must be"),
        ({"quantization_config": {"quant_method": "gptq", "bits": 4}}, "UnboundLocalError: "),
    ],
)
def test_whatever_a_class_raises_as_it_is_built_is_told_in_words(folder, config, says):
    both = {"n_ctx": 64, "n_layer": 4, "n_positions": 64, "layer_norm_epsilon": 1e-5} | config

    rewrite(folder / "config.json", lambda told: told.update(both))
    with pytest.raises(LoadError, match=says):
        structure_of(describe(folder))


def test_the_words_for_what_a_class_lacks_have_one_line(folder):
    rewrite(folder / "config.json", lambda config: config.update(num_hidden_layers=1))
    with pytest.raises(LoadError) as caught:
        structure_of(describe(folder))
    assert "parameters not in model: model.layers." in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500


def test_weights_that_do_not_fit_the_config(folder):
    rewrite(folder / "config.json", lambda c: c.update(intermediate_size=97))
    with pytest.raises(LoadError, match="cannot load"):
        load_stage(describe(folder), 0, 2)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=200))
def test_any_bytes_as_weights_are_refused_in_words(folder, data):
    for file in folder.glob("model*"):
        file.unlink()
    (folder / "model.safetensors").write_bytes(data)
    with pytest.raises(LoadError):
        describe(folder)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_any_header_is_read_or_refused_in_words(folder, data):
    entry = st.fixed_dictionaries(
        {
            "dtype": st.sampled_from(["F32", "BF16", "X", 3]),
            "shape": st.lists(st.integers(-2, 4), max_size=3),
            "data_offsets": st.lists(st.integers(-9, 99), max_size=3),
        }
    )
    names = st.sampled_from(["model.layers.0.w", "a", "__metadata__"])
    header = json.dumps(data.draw(st.dictionaries(names, entry))).encode()
    for file in folder.glob("model*"):
        file.unlink()
    file = folder / "model.safetensors"
    file.write_bytes(struct.pack("<Q", len(header)) + header + bytes(64))
    try:
        entries = read_entries(folder)
    except LoadError:
        return
    size = file.stat().st_size
    assert all(0 <= e.offset <= e.offset + e.size <= size for e in entries.values())


# ------------------------------------------------------------------ the folder


def test_a_local_folder_is_found(folder):
    assert find(str(folder)) == folder.resolve()


@pytest.mark.parametrize("model", ["./nowhere", "/no/where", "plain", "a/b/c", "~/no-such-model"])
def test_what_is_no_folder(model):
    with pytest.raises(LoadError, match="no folder"):
        find(model)


def test_a_file_is_no_model(folder):
    with pytest.raises(LoadError, match="is a file"):
        find(str(folder / "config.json"))


def test_room():
    assert memory_budget(12345) == 12345
    assert memory_budget(0) > 1 << 28


# ------------------------------------------------------------ digest and manifest


def test_the_digest_takes_config_and_headers_in(tmp_path):
    digests = {describe(make_model(tmp_path / "a", "llama")).digest}
    other = make_model(tmp_path / "b", "llama")
    rewrite(other / "config.json", lambda c: c.update(rope_theta=5000.0))
    digests.add(describe(other).digest)
    config = config_of("llama")
    weights = random_weights(config)
    weights["model.norm.weight"] = weights["model.norm.weight"].astype(mx.float16)
    digests.add(describe(write_model(tmp_path / "c", config, weights)).digest)
    digests.add(describe(make_model(tmp_path / "d", "llama", intermediate_size=80)).digest)
    assert len(digests) == 4


def test_without_a_manifest_the_digest_does_not_pin_weights_and_says_so(tmp_path):
    config = config_of("llama")
    one = write_model(tmp_path / "a", config, random_weights(config, 1))
    two = write_model(tmp_path / "b", config, random_weights(config, 2))
    assert describe(one).digest == describe(two).digest
    assert describe(one).notes == (
        "no sealring.json: of the weights a sample is compared (see: sealring digest --help)",
    )
    for folder in (one, two):
        write_manifest(folder)
    assert describe(one).digest != describe(two).digest
    assert describe(one).notes == ()


def test_the_manifest_is_the_hash_of_each_tensors_data(folder):
    tensors = json.loads(write_manifest(folder).read_text())["tensors"]
    entries = read_entries(folder)
    assert tensors.keys() == entries.keys()
    entry = entries["model.layers.3.mlp.up_proj.weight"]
    data = entry.file.read_bytes()[entry.offset : entry.offset + entry.size]
    assert tensors[entry.name] == hashlib.sha256(data).hexdigest()


def flip(folder, name: str) -> None:
    """Change one weight of tensor *name*: its first element, to 100."""
    entry = read_entries(folder)[name]
    with entry.file.open("r+b") as stream:
        stream.seek(entry.offset)
        stream.write(struct.pack("<f", 100.0))


LATER = "model.layers.4.input_layernorm.weight"


def test_a_changed_weight_of_a_later_rank(tmp_path):
    """With its manifest it changes the text; without, the rank that holds it refuses, and only
    that one."""
    folder = make_model(tmp_path / "good", "llama", shards=2)
    write_manifest(folder)
    expected = Ring(folder, (0, 2, 5)).generate(PROMPT, 12)
    changed = tmp_path / "changed"
    shutil.copytree(folder, changed)
    flip(changed, LATER)
    load_stage(describe(changed), 0, 2)
    with pytest.raises(LoadError, match=f"tensor {LATER} does not match the manifest"):
        load_stage(describe(changed), 2, 5)
    write_manifest(changed)
    assert describe(changed).digest != describe(folder).digest
    assert Ring(changed, (0, 2, 5)).generate(PROMPT, 12) != expected


def test_a_tensor_that_the_manifest_leaves_out(folder):
    write_manifest(folder)
    rewrite(folder / MANIFEST, lambda m: m["tensors"].pop(LATER))
    with pytest.raises(LoadError, match=f"tensor {LATER} does not match"):
        load_stage(describe(folder), 4, 5)


def test_weights_that_change_between_describing_and_loading(folder):
    info = describe(folder)
    for file in folder.glob("model*"):
        file.unlink()
    make_model(folder, "llama", num_hidden_layers=4)
    with pytest.raises(LoadError):
        load_stage(info, 0, 2)


@pytest.mark.parametrize("load", [load_stage, partial(load_shard, rank=0, size=2)])
def test_a_file_that_is_cut_short_while_it_is_loaded(folder, monkeypatch, load):
    info = describe(folder)
    read = WeightReader.read

    def cut_then_read(reader, model):
        for file in folder.glob("model*"):
            os.truncate(file, 1000)
        read(reader, model)

    monkeypatch.setattr(WeightReader, "read", cut_then_read)
    with pytest.raises(LoadError, match="reading the weights failed"):
        load(info, 1, 2)


def test_what_a_configuration_leaves_out_is_read_from_the_weights(tmp_path):
    """Gemma 3's own configurations leave out what its class has as a default."""
    folder = make_model(tmp_path / "whole", "llama")
    whole = describe(folder)
    for names in (("vocab_size",), ("num_hidden_layers",), ("vocab_size", "hidden_size")):

        def leave_out(config, names=names):
            for name in names:
                del config[name]

        shutil.copytree(folder, part := tmp_path / "-".join(names))
        rewrite(part / "config.json", leave_out)
        told = describe(part)
        assert (told.vocabulary, told.hidden) == (whole.vocabulary, whole.hidden)
        assert told.layers == whole.layers


@pytest.mark.parametrize(
    ("method", "changed"),
    [
        ("gptq", {}),  # mlx-lm finds nothing to convert, and fails with an UnboundLocalError
        ("bitsandbytes", {"weight": mx.int8}),  # mlx-lm would multiply by whole numbers
        ("bitsandbytes", {"weight": mx.int8, "SCB": mx.float32}),
        ("hqq", {"W_q": mx.uint8}),
    ],
)
def test_a_quantization_that_mlx_lm_does_not_convert_is_named(models, tmp_path, method, changed):
    folder = Path(shutil.copytree(models["llama"], tmp_path / "model"))
    (folder / "sealring.json").unlink(missing_ok=True)
    weights = dict(mx.load(str(folder / "model.safetensors")))
    name = "model.layers.1.mlp.down_proj."
    shape = weights[f"{name}weight"].shape
    weights |= {name + key: mx.ones(shape, dtype) for key, dtype in changed.items()}
    mx.eval(weights)
    mx.save_safetensors(str(folder / "model.safetensors"), weights)
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": method, "bits": 4}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(LoadError, match=rf"quantized by {method} .*`mlx_lm.convert -q`"):
        structure_of(describe(folder))


def test_what_was_read_is_told_before_the_first_run(folder, monkeypatch):
    """A GPU may compile for a minute in that run."""
    info, told = describe(folder), []

    def raising(*_):
        raise RuntimeError("no kernel")

    monkeypatch.setattr(mlx_lm("models.llama").MLP, "__call__", raising)
    with pytest.raises(LoadError, match="no kernel"):
        load_stage(info, 0, len(info.layers), told.append)
    (loaded,) = told
    assert loaded.read > 0
    assert loaded.held > 0
