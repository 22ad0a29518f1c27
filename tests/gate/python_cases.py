#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The Python module on numpy arrays. python_test.py runs it in an environment that has the wheel and numpy.

usage: python_cases.py PROGRAM [UNITTEST..]
"""
import copy
import gc
import json
import logging
import os
import pathlib
import pickle
import subprocess
import sys
import tempfile
import threading
import unittest
import warnings

import meshgrad
import numpy as np

ROOT = pathlib.Path(__file__).resolve().parents[2]
SIDE = 5
CONFIG = """data = {inputs = ["u", "load"], targets = ["u"], node_types = 2, predicted_types = [0]}
model = {width = 8, blocks = 2, activation = "silu"}
train = {steps = 200, noise = 1e-3}
optimizer.lr = 1e-2"""
FIELDS = [meshgrad.Field("u", 2), meshgrad.Field("load", 1, on_graph=True, unit="N")]


def plate(seed=1):
    """A mesh of quads whose edge keeps its values, a field of 2 components, a load."""
    random = np.random.default_rng(seed)
    at = np.arange(SIDE * SIDE, dtype=np.int32).reshape(SIDE, SIDE)
    quads = np.stack([at[:-1, :-1], at[:-1, 1:], at[1:, 1:], at[1:, :-1]], axis=-1).reshape(-1, 4)
    xy = np.stack([at.ravel() % SIDE, at.ravel() // SIDE], axis=1) / (SIDE - 1)
    edge = np.any((xy == 0) | (xy == 1), axis=1).astype(np.int32)
    return meshgrad.Mesh(xy, quads, node_type=edge), random.normal(size=(SIDE * SIDE, 2)), random.normal(size=1)


def trained(path, frames=12, runtime=None):
    trainer = meshgrad.Trainer(CONFIG, FIELDS, held_out_every=4, dt=0.5, runtime=runtime or meshgrad.Runtime(threads=1))
    mesh, u, load = plate()
    trainer.set_mesh(mesh)
    for _ in range(frames):
        trainer.set_field("u", u)
        trainer.set_field("load", load)
        trainer.append()
        u = u * 0.9 + 0.1 * load
    taken, loss = trainer.train(20)
    assert taken == 20 and loss > 0, (taken, loss)
    trainer.save(path)
    return trainer


class Case(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.temporary = tempfile.TemporaryDirectory()
        cls.path = pathlib.Path(cls.temporary.name)
        cls.model = cls.path / "model.safetensors"
        cls.trainer = trained(cls.model)

    @classmethod
    def tearDownClass(cls):
        cls.trainer.close()
        cls.temporary.cleanup()

    def predictor(self, **options):
        return meshgrad.Predictor(self.model, runtime=meshgrad.Runtime(threads=1), **options)

    def ready(self, seed=1):
        predictor = self.predictor()
        mesh, u, load = plate(seed)
        predictor.set_mesh(mesh)
        predictor.set_field("u", u)
        predictor.set_field("load", load)
        return predictor

    def predicted(self, seed=1, steps=2):
        predictor = self.ready(seed)
        predictor.predict(steps)
        return predictor.get_field("u")

    def refused(self, kind, call, *arguments, **named):
        """The error, whose text begins with its attributes."""
        with self.assertRaises(kind) as caught:
            call(*arguments, **named)
        error = caught.exception
        *file, key = error.place.rsplit(": ", 1) if "config:" in error.place else [error.place]
        place = "".join(f"{part}: " for part in file) + f"[{key}]"
        expected = f"{place} needed {error.needed}, got {error.got}" + (f"; fix: {error.fix}" if error.fix else "")
        self.assertEqual(str(error).split("\n")[0], expected)
        return error


class Predicting(Case):
    def test_a_checkpoint_describes_itself(self):
        predictor = self.predictor()
        self.assertEqual((predictor.dim, predictor.dt), (2, 0.5))
        self.assertEqual([field[:3] for field in predictor.inputs], [("u", 2, False), ("load", 1, True)])
        self.assertEqual([field[:2] for field in predictor.targets], [("u", 2)])

    def test_results_have_the_shape_and_dtype_that_was_set(self):
        wide = self.predicted()
        self.assertEqual((wide.shape, wide.dtype), ((SIDE * SIDE, 2), np.float64))
        predictor = self.ready()
        predictor.set_field("u", plate()[1].astype(np.float32))
        predictor.predict(2)
        narrow = predictor.get_field("u")
        self.assertEqual(narrow.dtype, np.float32)
        np.testing.assert_array_equal(narrow, wide.astype(np.float32))
        out = np.zeros(wide.shape)
        self.assertIs(predictor.get_field("u", out), out)
        np.testing.assert_array_equal(out, narrow)
        edge = plate()[0].node_type == 1
        np.testing.assert_array_equal(wide[edge], plate()[1].astype(np.float32)[edge])
        self.assertGreater(np.abs(wide - plate()[1])[~edge].min(), 0)

    def test_an_input_is_read_where_it_lies(self):
        predictor = self.ready()
        load = np.array([3.0])
        predictor.set_field("load", load)
        predictor.predict()
        first = predictor.get_field("u")
        load[0] = -3.0
        predictor.set_field("u", plate()[1])
        predictor.predict()
        self.assertGreater(np.abs(predictor.get_field("u") - first).max(), 1e-3)

    def test_borrowed_arrays_live_as_long_as_the_predictor(self):
        expected = self.predicted(steps=5)
        predictor = self.ready()  # whose arrays have no other owner
        gc.collect()
        kept = [np.full((SIDE * SIDE, 2), 1e30) for _ in range(100)] + [np.full(1, 1e30) for _ in range(100)]
        predictor.positions_changed()
        predictor.predict(5)
        np.testing.assert_array_equal(predictor.get_field("u"), expected)
        del kept
        load = plate()[2]
        count = sys.getrefcount(load)
        predictor.set_field("load", load)
        self.assertEqual(sys.getrefcount(load), count + 1)
        predictor.set_mesh(plate()[0])
        self.assertEqual(sys.getrefcount(load), count)

    def test_what_c_borrowed_outlives_an_interrupt_after_the_call(self):
        predictor = self.ready()
        load, mesh = plate()[2], plate()[0]
        counts = sys.getrefcount(load), sys.getrefcount(mesh.positions)
        call = predictor._call

        def interrupted(*arguments):
            call(*arguments)
            raise KeyboardInterrupt
        predictor._call = interrupted
        self.assertRaises(KeyboardInterrupt, predictor.set_field, "load", load)
        self.assertGreater(sys.getrefcount(load), counts[0])
        self.assertRaises(KeyboardInterrupt, predictor.set_mesh, mesh)
        self.assertEqual(sys.getrefcount(mesh.positions), counts[1])  # by way of the mesh
        del mesh
        self.assertIn(SIDE * SIDE, [len(held.positions) for meshes in predictor._lent[1:] for held in meshes])

    def test_arrays_with_gaps_are_neither_copied_nor_confused(self):
        mesh, u, load = plate()
        wide = np.full((SIDE * SIDE, 5), np.nan)
        records = np.zeros(SIDE * SIDE, [("kind", np.int8), ("u", np.float64, 2)])  # not aligned
        for own, given in ((u, wide[:, 1:4:2]), (u, np.asfortranarray(u)), (u[::-1].copy()[::-1], u[::-1].copy()[::-1]),
                           (u, np.zeros((2, SIDE * SIDE, 3))[..., 1].T), (u, records["u"]), (u.astype(np.float32), wide.astype(np.float32)[:, ::-3])):
            given[...] = own
            self.assertFalse(given.flags.c_contiguous and given.flags.aligned)
            predictor = self.predictor()
            spread = np.full((SIDE * SIDE, 3), np.nan)[:, ::2]
            spread[...] = mesh.positions
            predictor.set_mesh(mesh._replace(positions=spread))
            predictor.set_field("u", given)
            predictor.set_field("load", np.array([np.nan, load[0]])[1:])
            predictor.predict(2)
            np.testing.assert_array_equal(predictor.get_field("u"), self.predicted().astype(given.dtype))
            self.assertTrue(predictor.get_field("u").flags.c_contiguous)
            self.assertIs(predictor.get_field("u", given), given)
            np.testing.assert_array_equal(given, predictor.get_field("u"))
        self.assertTrue(np.isnan(wide[:, ::2]).all())
        column = np.zeros((SIDE * SIDE, 2, 2))[:, 1, 0]
        with meshgrad.Trainer(CONFIG.replace('["u", "load"]', '["u"]'), [meshgrad.Field("u")]) as trainer:
            trainer.set_mesh(mesh)
            for scale in (1, 2):
                column[...] = scale * u[:, 0]
                trainer.set_field("u", column)
                trainer.append()
            predictor = meshgrad.Predictor(trainer)
        predictor.set_mesh(mesh)
        predictor.set_field("u", column)
        np.testing.assert_array_equal(predictor.get_field("u"), column.astype(np.float32))

    def test_a_predictor_of_a_trainer_has_its_present_weights(self):
        mesh, u, load = plate()

        def predicted(predictor):
            predictor.set_mesh(mesh)
            predictor.set_field("u", u)
            predictor.set_field("load", load)
            predictor.predict(2)
            return predictor.get_field("u")
        trainer = trained(self.path / "again.safetensors")
        predictor = meshgrad.Predictor(trainer)
        trainer.train(3)
        later = predicted(meshgrad.Predictor(trainer))
        trainer.close()
        np.testing.assert_array_equal(predicted(predictor), self.predicted())
        self.assertGreater(np.abs(later - self.predicted()).max(), 0)
        self.refused(meshgrad.InvalidArgument, meshgrad.Predictor, trainer)

    def test_positions_are_read_again(self):
        mesh, _, _ = plate()
        predictor = self.ready()
        predictor.set_mesh(mesh)
        for seed in (1, 2):
            _, u, load = plate()
            predictor.set_field("u", u)
            predictor.set_field("load", load)
            predictor.predict()
            if seed == 1:
                first = predictor.get_field("u")
                mesh.positions[SIDE + 1] += 0.1
                predictor.positions_changed()
        self.assertGreater(np.abs(predictor.get_field("u") - first).max(), 1e-6)

    def test_several_meshes_are_predicted_together(self):
        predictor = self.predictor()
        plates = [plate(seed) for seed in (1, 2, 3)]
        predictor.set_mesh(*(mesh for mesh, _, _ in plates))
        for number, (_, u, load) in enumerate(plates):
            predictor.set_field("u", u, mesh=number)
            predictor.set_field("load", load, mesh=number)
        predictor.predict(2)
        for number in range(3):
            np.testing.assert_allclose(predictor.get_field("u", mesh=number), self.predicted(number + 1), rtol=1e-6)
        self.refused(meshgrad.InvalidArgument, predictor.get_field, "u", mesh=3)

    def test_a_mesh_of_edges_from_1(self):
        mesh, u, load = plate()
        sides = np.concatenate([mesh.cells[:, [i, (i + 1) % 4]] for i in range(4)]).astype(np.int64)
        edges = np.unique(np.sort(sides, axis=1), axis=0) + 1
        predictor = self.predictor()
        predictor.set_mesh(meshgrad.Mesh(mesh.positions, edges=edges, node_type=mesh.node_type, first_node=1))
        predictor.set_field("u", u)
        predictor.set_field("load", load)
        predictor.predict(2)
        np.testing.assert_allclose(predictor.get_field("u"), self.predicted(), rtol=1e-5)
        self.refused(meshgrad.InvalidArgument, predictor.set_mesh, mesh._replace(edges=edges))

    def test_gradients_are_those_of_finite_differences(self):
        mesh, u, load = plate()
        weights = np.random.default_rng(5).normal(size=u.shape)

        def cost(u, load, positions=mesh.positions):
            predictor = self.predictor()
            predictor.set_mesh(mesh._replace(positions=positions))
            predictor.set_field("u", u)
            predictor.set_field("load", load)
            predictor.record_steps()
            predictor.predict(3)
            return (weights * predictor.get_field("u")).sum(), predictor
        _, predictor = cost(u, load)
        predictor.set_gradient("u", weights)
        predictor.backward()
        for gradient, moved in ((predictor.get_gradient("u"), lambda h: cost(u + h, load)),
                                (predictor.get_gradient("load"), lambda h: cost(u, load + h)),
                                (predictor.get_position_gradient(), lambda h: cost(u, load, mesh.positions + h))):
            h = 3e-3 * np.random.default_rng(6).normal(size=gradient.shape)
            difference = (moved(h)[0] - moved(-h)[0]) / 2
            self.assertAlmostEqual((gradient * h).sum(), difference, delta=2e-2 * np.abs(difference) + 1e-5)
        np.testing.assert_array_equal(predictor.get_gradient("u", of="boundary", step=0)[mesh.node_type == 0], 0)


class Refusals(Case):
    def test_arrays_that_need_a_copy(self):
        mesh, u, _ = plate()
        predictor = self.ready()
        for values, needed, got, fix in (
                (np.broadcast_to(u[0], u.shape), "rows one after another", "strides (0, 8)", "numpy.ascontiguousarray(..) copies it"),
                (np.zeros((1, *u.T.shape)).T, "rows one after another", "strides (8, 200, 400)", "numpy.ascontiguousarray(..) copies it"),
                (u.astype(np.float16), "float32 or float64", "<f2", ".astype(numpy.float32) copies it"),
                (u.astype(">f8"), "float32 or float64", ">f8", ".astype(numpy.float32) copies it"),
                (u.astype(int), "float32 or float64", "<i8", ".astype(numpy.float32) copies it"),
                (np.ma.masked_invalid(u), "a numpy.ndarray", "MaskedArray", "numpy.asarray(..)"),
                (u.tolist(), "a numpy.ndarray", "list", "numpy.asarray(..)"),
                (np.array(1.0), "1 to 3 axes", "shape ()", ".reshape(..)")):
            error = self.refused(meshgrad.InvalidArgument, predictor.set_field, "u", values)
            self.assertEqual((error.place, error.needed, error.got, error.fix), ("u", needed, got, fix))
        error = self.refused(meshgrad.InvalidArgument, predictor.set_mesh, mesh._replace(cells=mesh.cells.astype(float)))
        self.assertEqual((error.place, error.needed), ("cells", "int32 or int64"))
        error = self.refused(meshgrad.InvalidArgument, predictor.set_mesh, mesh._replace(cells=np.asfortranarray(mesh.cells)))
        self.assertEqual((error.place, error.needed), ("cells", "rows one after another"))
        u.flags.writeable = False
        predictor.set_field("u", u)
        self.assertIn("written", self.refused(meshgrad.InvalidArgument, predictor.get_field, "u", u).needed)

    def test_transposed_and_wrong_sizes(self):
        predictor = self.ready()
        self.refused(meshgrad.InvalidArgument, predictor.set_field, "u", np.zeros((2, SIDE * SIDE)))
        self.refused(meshgrad.InvalidArgument, predictor.set_field, "u", np.zeros((SIDE * SIDE + 1, 2)))
        self.assertIn("u, load", self.refused(meshgrad.InvalidArgument, predictor.set_field, "v", np.zeros(3)).needed)
        self.refused(meshgrad.InvalidArgument, predictor.get_field, "u\0", np.zeros((SIDE * SIDE, 2)))

    def test_each_kind_of_error(self):
        self.assertIn("none.safetensors", self.refused(meshgrad.DataError, meshgrad.Predictor, "none.safetensors").place)
        error = self.refused(meshgrad.ConfigError, meshgrad.Trainer, CONFIG.replace("width = 8", "width = -8"), FIELDS)
        self.assertIsInstance(error, ValueError)
        self.assertEqual((error.place, error.got), ("meshgrad_trainer_options: config:2: model.width", "-8"))
        self.assertEqual(self.refused(meshgrad.ConfigError, meshgrad.Trainer, CONFIG + "\na = '", FIELDS).fix, "fix this line")
        with self.assertRaises(meshgrad.DeviceError):
            meshgrad.Runtime("cuda:77")
        with self.assertRaises(meshgrad.OutOfMemory) as caught:
            meshgrad.Predictor(self.model, runtime=meshgrad.Runtime(memory_limit=1))
        self.assertIsInstance(caught.exception, MemoryError)
        for error in (meshgrad.OutOfMemory("a report"), meshgrad.DataError("[a: b] needed c, got d; fix: e")):
            self.assertEqual(vars(pickle.loads(pickle.dumps(error))), vars(error))

    def test_a_closed_object(self):
        with self.predictor() as predictor:
            pass
        predictor.close()
        self.assertEqual(self.refused(meshgrad.InvalidArgument, predictor.predict).place, "Predictor")
        self.refused(meshgrad.InvalidArgument, predictor.set_mesh, plate()[0])

    def test_copies_do_not_destroy_twice(self):
        predictor = self.ready()
        again = copy.copy(predictor)
        del predictor
        gc.collect()
        self.refused(meshgrad.InvalidArgument, again.predict)
        self.assertRaises((TypeError, AttributeError), pickle.dumps, again)


class Threads(Case):
    def test_a_call_releases_the_gil_and_a_second_one_is_refused(self):
        runtime = meshgrad.Runtime(threads=1)
        trainer = trained(self.path / "other.safetensors", runtime=runtime)
        predictor = meshgrad.Predictor(self.model, runtime=runtime)
        thread = threading.Thread(target=trainer.train, args=(10**6, 0.5))
        thread.start()
        while thread.is_alive() and not runtime._in_call.locked():
            pass
        refusals = 0
        while thread.is_alive():
            try:
                predictor.set_mesh(plate()[0])
            except meshgrad.InvalidArgument as error:
                refusals += error.needed == "one call of a Runtime at a time"
        self.assertGreater(refusals, 0)
        predictor.set_mesh(plate()[0])

    def test_an_object_that_ends_within_a_call_is_destroyed_by_the_next(self):
        runtime = meshgrad.Runtime(threads=1)
        predictors = [meshgrad.Predictor(self.model, runtime=runtime) for _ in range(3)]
        last = predictors.pop()
        with runtime._one_call("a call"):
            predictors.clear()
            self.assertEqual(len(runtime._unused), 2)
        last.set_mesh(plate()[0])
        self.assertEqual(runtime._unused, [])
        with runtime._one_call("a call"):
            del last
        del runtime  # which destroys what is left before itself

    def test_runtimes_work_at_the_same_time(self):
        expected = {seed: self.predicted(seed, 20) for seed in range(4)}
        found = {}
        threads = [threading.Thread(target=lambda seed=seed: found.update({seed: self.predicted(seed, 20)})) for seed in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for seed in range(4):
            np.testing.assert_array_equal(found[seed], expected[seed])

    def test_a_child_of_fork_predicts(self):
        expected = self.predicted(steps=3)
        predictor = self.ready()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of later Pythons: other threads run
            child = os.fork()
        if child == 0:
            predictor.predict(3)
            own = self.predicted(steps=3)  # with a Runtime that the child makes
            os._exit(0 if np.array_equal(predictor.get_field("u"), expected) and np.array_equal(own, expected) else 1)
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        predictor.predict(3)
        np.testing.assert_array_equal(predictor.get_field("u"), expected)


class Training(Case):
    def test_a_loaded_trainer_goes_on_with_the_same_bits(self):
        with meshgrad.Trainer.load(self.model) as again, trained(self.path / "copy.safetensors") as trainer:
            self.assertEqual(again.counts(), trainer.counts())
            self.assertEqual(again.counts()[0], 20)
            self.assertEqual(again.train(5), trainer.train(5))
            self.assertEqual(again.held_out_loss(), trainer.held_out_loss())

    def test_options_reach_the_trainer(self):
        with meshgrad.Trainer(CONFIG, FIELDS, capacity=3, held_out_every=0, most_recent=True) as trainer:
            trainer.set_mesh(plate()[0])
            trainer.set_field("load", plate()[2])
            for frame in range(14):
                if frame == 12:
                    trainer.restart_trajectory()
                trainer.set_field("u", plate()[1] * 0.9**frame)
                trainer.append()
            self.assertEqual(trainer.counts(), (0, 3, 12))
            self.assertTrue(np.isnan(trainer.held_out_loss()))
            taken, loss = trainer.train(0)
            self.assertEqual(taken, 0)
            self.assertTrue(np.isnan(loss))
            self.assertEqual(trainer.train(10**9, seconds=0.0)[0], 0)

    def test_messages_go_to_the_logger(self):
        config = CONFIG.replace("noise = 1e-3", "noise = 0.0")
        with self.assertLogs("meshgrad", logging.WARNING) as logs, meshgrad.Trainer(config, FIELDS) as trainer:
            trainer.set_mesh(plate()[0])
            trainer.set_field("load", plate()[2])
            for frame in range(3):
                trainer.set_field("u", 1e-10 * np.random.default_rng(frame).normal(size=(SIDE * SIDE, 2)))
                trainer.append()
            trainer.train(0)
        self.assertIn("u has varied by less than 1e-08", " ".join(logs.output))


class Files(Case):
    def run_program(self, *words):
        subprocess.run([PROGRAM, *map(str, words)], cwd=self.path, check=True, capture_output=True)

    def run_of(self, name, data, keys, *options):
        """A folder of its own for the run and its files."""
        self.path = pathlib.Path(tempfile.mkdtemp(dir=self.temporary.name))
        self.run_program("convert", ROOT / "tests/data" / data, "-o", f"{name}.mgd", *options)
        (self.path / f"{name}.toml").write_text(f"data = {{path = '{name}.mgd', {keys}}}\nmodel = {{width = 8, blocks = 1}}\n"
                                                f"train = {{steps = 6, log_every = 2, noise = 0.01}}\nrun.dir = '{name}'\n")
        self.run_program("train", f"{name}.toml")

    def check_rollout(self, name, field, components, steps):
        """A predictor on what read_rollout read makes the bits of the frames."""
        frames = meshgrad.read_rollout(self.path / "frames")
        self.assertEqual(len(frames), steps + 1)
        first = frames[0]
        predictor = meshgrad.Predictor(self.path / name / "checkpoints/last.safetensors")
        corners = first.offsets[0]
        types = np.ascontiguousarray(first.fields["node_type"]) if "node_type" in first.fields else None
        points = np.ascontiguousarray(first.points[:, :2])
        predictor.set_mesh(meshgrad.Mesh(points, first.connectivity.reshape(-1, corners), node_type=types))
        predictor.set_field(field, np.ascontiguousarray(first.fields[field].reshape(len(points), -1)[:, :components]))
        for frame in frames[1:]:
            predictor.predict()
            np.testing.assert_array_equal(frame.fields[field].reshape(len(points), -1)[:, :components], predictor.get_field(field))
            self.assertGreater(np.abs(frame.fields[field] - first.fields[field]).max(), 0)
        return frames

    def test_a_rollout_has_the_bits_of_the_predictor(self):
        self.run_of("flow", "cylinder_flow_sample", "inputs = ['velocity'], targets = ['velocity']")
        self.run_program("rollout", "flow", "--steps", "3", "--boundary", "initial", "--checkpoint", "last", "-o", "frames")
        frames = self.check_rollout("flow", "velocity", 2, 3)
        self.assertEqual([frame.time for frame in frames], [0, 0.01, 0.02, 0.03])
        self.assertEqual({kind for frame in frames for kind in frame.types}, {5})
        self.assertEqual(frames[1].fields["velocity"].dtype, np.float32)
        np.testing.assert_array_equal(frames[1].fields["velocity"][:, 2], 0)
        np.testing.assert_allclose(frames[1].fields["velocity"] - frames[1].fields["velocity_truth"], frames[1].fields["velocity_error"], atol=1e-6)

    def test_metrics_are_those_of_the_file(self):
        self.run_of("flow", "cylinder_flow_sample", "inputs = ['velocity'], targets = ['velocity']")
        path = self.path / "flow/metrics.jsonl"
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        metrics = meshgrad.read_metrics(self.path / "flow")
        self.assertEqual(set(metrics), {key for row in rows for key in row})
        for key, (steps, values) in metrics.items():
            self.assertEqual(list(zip(steps, values)), [(row["step"], row[key]) for row in rows if key in row])
        path.write_text(path.read_text() + '{"step": 7, "loss": null}\n{"step": 8, "lo')
        with self.assertLogs("meshgrad", logging.WARNING) as logs:
            steps, losses = meshgrad.read_metrics(path)["loss"]
        self.assertIn(f"line {len(rows) + 2} is no row", logs.output[0])
        self.assertEqual(steps[-1], 7)
        self.assertTrue(np.isnan(losses[-1]))
        self.assertRaises(FileNotFoundError, meshgrad.read_metrics, self.path / "none")

    def test_numbers_far_from_zero_and_damaged_files(self):
        self.run_of("far", "far_from_zero.h5", "inputs = ['u'], targets = ['u'], valid_split = 'train'", "--split", "1,0,0")
        self.run_program("rollout", "far", "--split", "train", "--checkpoint", "last", "-o", "frames")
        frames = meshgrad.read_rollout(self.path / "frames")
        self.assertEqual((frames[0].points.dtype, frames[0].fields["u"].dtype), (np.float64, np.float64))
        np.testing.assert_allclose(frames[0].points[:2, :2], [[1e6, 1e6], [1e6 + 0.25, 1e6]], atol=1e-7, rtol=0)
        np.testing.assert_allclose(frames[0].fields["u"], 1e7 + np.arange(16) / 8, atol=1e-6, rtol=0)
        file = self.path / "frames/frame_00001.vtu"
        whole = file.read_bytes()
        for content in (whole[:-200], whole[:300], b"", whole.replace(b"Float64", b"Float16"), whole.replace(b"Points\"", b"Pts\"")):
            file.write_bytes(content)
            self.assertEqual(self.refused(meshgrad.DataError, meshgrad.read_rollout, self.path / "frames").place, str(file))
        (self.path / "frames/mesh_00000.vtu").write_bytes(whole)
        self.assertEqual(self.refused(meshgrad.DataError, meshgrad.read_rollout, self.path / "frames").got, "both")
        (self.path / "frames/rollout.pvd").unlink()
        (self.path / "frames/mesh_00010_00002.vtu").write_bytes((self.path / "frames/frame_00002.vtu").read_bytes())
        self.assertEqual([frame.time for frame in meshgrad.read_rollout(self.path / "frames")], [1, 2])


if __name__ == "__main__":
    PROGRAM = sys.argv.pop(1)
    unittest.main(verbosity=2)
