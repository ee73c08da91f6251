"""Tests of the golden files and of the scripts that generate them: run python -m unittest in this folder.

Skips tests that need PyTorch if it is not installed.
"""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest
import zlib

import numpy as np

import philox

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
GOLDEN = ROOT / "tests" / "golden"
sys.path.insert(0, str(ROOT / "tools" / "inputs"))
import rdata  # noqa: E402

try:
    import torch  # noqa: F401
    import transformers  # noqa: F401
    HAVE_TORCH = True
except ImportError:
    HAVE_TORCH = False
try:
    import peft  # noqa: F401
    HAVE_PEFT = HAVE_TORCH
except ImportError:
    HAVE_PEFT = False


class Philox(unittest.TestCase):
    def test_known_answers(self):
        philox.check()

    def test_projections_estimate_the_norm_and_are_linear(self):
        generator = np.random.Generator(np.random.PCG64(1))
        values = generator.standard_normal((300, 70))
        projections = philox.project("model.norm.weight", values)
        self.assertAlmostEqual(np.mean(projections ** 2) / np.sum(values ** 2), 1.0, delta=0.6)
        np.testing.assert_allclose(
            philox.project("model.norm.weight", values, chunk=777), projections, rtol=0, atol=1e-9)
        np.testing.assert_allclose(philox.project("model.norm.weight", -2 * values), -2 * projections, rtol=1e-12)

    def test_signs_follow_the_definition(self):
        key = philox.fnv1a64("lm_head.weight")
        for index in (0, 1, 12345, 2 ** 32 + 5):
            words = philox.philox4x32((index & 0xFFFFFFFF, index >> 32, 0, 0), (key & 0xFFFFFFFF, key >> 32))
            bits = int(words[0][0]) | int(words[1][0]) << 32
            self.assertEqual(bits, int(philox.sign_bits("lm_head.weight", index, index + 1)[0]))


class RData(unittest.TestCase):
    @staticmethod
    def number(value):
        return value.to_bytes(4, "big", signed=True)

    def chars(self, text, encoding="utf-8", flags=0x40009):
        data = text.encode(encoding)
        return self.number(flags) + self.number(len(data)) + data

    def names(self, *names):
        pairs = self.number(0x402) + self.number(1) + self.chars("names") + self.number(16) + self.number(len(names))
        return pairs + b"".join(self.chars(name) for name in names) + self.number(254)

    def test_reads_strings(self):
        header = b"X\n" + self.number(3) + self.number(0x40201) + self.number(0x30500) + self.number(5) + b"UTF-8"
        strings = self.number(16) + self.number(3) + self.chars("caf\u00e9") + self.chars("\u00fc", "latin-1", 0x4009) \
            + self.number(9) + self.number(-1)
        value = header + strings
        record = len(value).to_bytes(4, "big") + zlib.compress(value)
        place = self.number(13) + self.number(2) + self.number(0) + self.number(len(record))
        index = header + self.number(0x213) + self.number(1) + self.number(0x213) + self.number(1) + place \
            + self.names("book") + self.names("variables")
        self.assertEqual(rdata.load(record, zlib.compress(index)), {"book": ["caf\u00e9", "\u00fc", None]})
        with self.assertRaises(ValueError):
            rdata.load(record[:-8], zlib.compress(index[:-8]))


class Files(unittest.TestCase):
    def test_cases_are_complete_and_consistent(self):
        groups = ("tiny", "families", "adapters")
        folders = [folder for group in groups for folder in sorted((GOLDEN / group).iterdir())]
        self.assertGreaterEqual(len(folders), 14 + 11 + 7)
        for folder in folders:
            with self.subTest(folder.name):
                expected = json.loads((folder / "expected.json").read_text())
                data = GOLDEN / expected["base"] if "base" in expected else folder
                lines = [json.loads(line) for line in (data / "data.jsonl").read_text().splitlines()]
                for line in lines:
                    size = len(line["input_ids"])
                    self.assertEqual(len(line.get("labels", line["input_ids"])), size)
                    self.assertEqual(sum(line.get("document_lengths", [size])), size)
                self.assertEqual(set(expected["gradient_norms"]), set(expected["projections"]))
                for name, norm in expected["gradient_norms"].items():
                    self.assertGreater(norm, 1e-4, name)
                    estimate = np.mean(np.square(expected["projections"][name])) ** 0.5
                    self.assertTrue(0.6 < estimate / norm < 1.5, (name, norm, estimate))
                self.assertLess(sum(file.stat().st_size for file in folder.iterdir()), 150_000)

    def test_families_have_steps_and_text(self):
        for folder in sorted((GOLDEN / "families").iterdir()):
            with self.subTest(folder.name):
                expected = json.loads((folder / "expected.json").read_text())
                config = json.loads((folder / "config.json").read_text())
                losses = expected["steps"]["losses"]
                self.assertEqual(len(losses), expected["steps"]["count"])
                self.assertAlmostEqual(losses[0], expected["loss"], places=12)
                self.assertEqual(len(expected["generation"]["ids"]), 12)
                self.assertGreater(expected["generation"]["smallest_margin"], 1e-3)
                if config.get("output_router_logits"):
                    total = expected["cross_entropy"] + config["router_aux_loss_coef"] * expected["router_loss"]
                    self.assertAlmostEqual(expected["loss"], total, places=12)

    def test_adapters_have_steps_and_all_trainable_tensors(self):
        for folder in sorted((GOLDEN / "adapters").iterdir()):
            with self.subTest(folder.name):
                expected = json.loads((folder / "expected.json").read_text())
                steps = expected["steps"]
                self.assertEqual(len(steps["losses"]), steps["count"])
                self.assertAlmostEqual(steps["losses"][0], expected["loss"], places=12)
                self.assertEqual(set(steps["norms"]), set(expected["gradient_norms"]))
                weights = (folder / "adapter_model.safetensors").read_bytes()
                header = json.loads(weights[8:8 + int.from_bytes(weights[:8], "little")])
                header.pop("__metadata__", None)
                self.assertEqual(set(header), set(expected["gradient_norms"]))
                self.assertEqual({tensor["dtype"] for tensor in header.values()}, {"F32"})
                config = json.loads((folder / "adapter_config.json").read_text())
                self.assertEqual(config["base_model_name_or_path"], expected["base"])

    def test_quickstart_tokenizer_has_4096_entries(self):
        model = json.loads((ROOT / "recipes" / "quickstart-tokenizer" / "tokenizer.json").read_text())["model"]
        self.assertEqual(sorted(model["vocab"].values()), list(range(4096)))

    def test_hard_page_has_a_list_of_ids_for_each_line(self):
        lines = (GOLDEN / "tokenizers" / "hard_unicode.txt").read_bytes().decode().split("\n")[:-1]
        expected = json.loads((GOLDEN / "tokenizers" / "expected.json").read_text())["tokenizers"]
        self.assertEqual(set(expected), {"smollm2", "llama3", "quickstart"})
        for part in expected.values():
            self.assertEqual(len(part["lines"]), len(lines))


def expect_reproduced(test, folder, kept_folder):
    """Compares the files of a case with those that are kept; returns both contents of expected.json."""
    for file in sorted(os.listdir(folder)):
        if file != "expected.json":
            test.assertEqual(pathlib.Path(folder, file).read_bytes(), (kept_folder / file).read_bytes(), file)
    made, kept = (json.loads((path / "expected.json").read_text()) for path in (pathlib.Path(folder), kept_folder))
    test.assertAlmostEqual(made["loss"], kept["loss"], places=10)
    for name, norm in kept["gradient_norms"].items():
        test.assertAlmostEqual(made["gradient_norms"][name], norm, places=9)
    return made, kept


@unittest.skipUnless(HAVE_TORCH, "needs PyTorch and transformers")
class Tiny(unittest.TestCase):
    def test_a_case_is_reproducible(self):
        transformers.logging.disable_progress_bar()
        import make_tiny_llamas
        torch.set_num_threads(1)
        with tempfile.TemporaryDirectory() as folder:
            make_tiny_llamas.make("everything", folder)
            expect_reproduced(self, folder, GOLDEN / "tiny" / "everything")

    def test_pieces_keep_documents_and_labels(self):
        import oracle
        line = {"input_ids": [1, 2, 3, 4, 5], "labels": [9, 8, -100, 6, 5], "document_lengths": [3, 2]}
        self.assertEqual(oracle.cut([line], 4), [
            {"input_ids": [1, 2, 3, 4], "labels": [9, 8, -100, 6], "document_lengths": [3, 1]},
            {"input_ids": [5], "labels": [5], "document_lengths": [1]}])
        self.assertEqual(oracle.count_targets([line]), 2)
        self.assertEqual([oracle.next_labels(line, a, b) for a, b in oracle.documents(line)],
                         [[8, -100, -100], [5, -100]])


@unittest.skipUnless(HAVE_PEFT, "needs PyTorch, transformers and PEFT")
class Adapters(unittest.TestCase):
    def test_a_case_is_reproducible(self):
        transformers.logging.disable_progress_bar()
        import make_adapters
        torch.set_num_threads(1)
        with tempfile.TemporaryDirectory() as folder:
            make_adapters.make("gpt_neox_dora", folder)
            made, kept = expect_reproduced(self, folder, GOLDEN / "adapters" / "gpt_neox_dora")
        self.assertAlmostEqual(made["steps"]["losses"][-1], kept["steps"]["losses"][-1], places=9)

    def test_the_check_of_exports_finds_differences(self):
        def check(adapter, figures, *more):
            base = GOLDEN / json.loads((adapter / "expected.json").read_text())["base"]
            return subprocess.run(
                [sys.executable, "check_adapter_export.py", base, adapter, base / "data.jsonl", "--eval", figures, *more],
                cwd=ROOT / "tools" / "golden", capture_output=True, text=True)

        good = GOLDEN / "adapters" / "llama_rslora"
        done = check(good, good / "expected.json", "--other", good)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertRegex(done.stdout, r"12 gradient norms: largest relative difference \S+e-1\d")
        self.assertRegex(done.stdout, r"largest difference 0.0e\+00")
        with tempfile.TemporaryDirectory() as folder:
            changed = pathlib.Path(folder)
            shutil.copytree(good, changed, dirs_exist_ok=True)
            config = json.loads((good / "adapter_config.json").read_text())
            (changed / "adapter_config.json").write_text(json.dumps({**config, "use_rslora": False}))
            done = check(good, good / "expected.json", "--other", changed)
            self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
            done = check(changed, good / "expected.json")
            self.assertEqual(done.returncode, 1, done.stdout + done.stderr)


if __name__ == "__main__":
    unittest.main()
