"""Trains a small neural network to tell three penguin species apart.

Standard library only, so that it runs wherever there is a Python: 4 body measurements in, one hidden
layer, 3 species out; mini-batch gradient descent with momentum. Exits with 1 when the network does not
reach the asked accuracy on penguins it has never seen.
"""

import argparse
import csv
import math
import random
import sys
import time
from pathlib import Path

FEATURES = ["bill_length_mm", "bill_depth_mm", "flipper_length_mm", "body_mass_g"]


def load(path):
    """Rows of (measurements, species); birds that were not measured completely are left out."""
    with open(path, newline="") as file:
        rows = [
            ([float(row[name]) for name in FEATURES], row["species"])
            for row in csv.DictReader(file)
            if all(row[name] != "NA" for name in FEATURES)
        ]
    species = sorted({label for _, label in rows})
    return [(x, species.index(label)) for x, label in rows], species


def standardize(train, test):
    """Scales both sets to mean 0 and deviation 1 by the figures of the training set."""
    columns = list(zip(*(x for x, _ in train)))
    means = [sum(column) / len(column) for column in columns]
    deviations = [
        math.sqrt(sum((value - mean) ** 2 for value in column) / len(column))
        for column, mean in zip(columns, means)
    ]

    def scale(rows):
        return [([(v - m) / d for v, m, d in zip(x, means, deviations)], y) for x, y in rows]

    return scale(train), scale(test)


class Network:
    """measurements -> tanh(hidden) -> softmax(species)"""

    def __init__(self, inputs, hidden, outputs, rng):
        self.w1 = [[rng.gauss(0, 1 / math.sqrt(inputs)) for _ in range(inputs)] for _ in range(hidden)]
        self.b1 = [0.0] * hidden
        self.w2 = [[rng.gauss(0, 1 / math.sqrt(hidden)) for _ in range(hidden)] for _ in range(outputs)]
        self.b2 = [0.0] * outputs
        self.velocity = [0.0] * (hidden * (inputs + 1) + outputs * (hidden + 1))

    def forward(self, x):
        h = [math.tanh(sum(w * v for w, v in zip(row, x)) + b) for row, b in zip(self.w1, self.b1)]
        scores = [sum(w * v for w, v in zip(row, h)) + b for row, b in zip(self.w2, self.b2)]
        top = max(scores)
        exps = [math.exp(score - top) for score in scores]
        total = sum(exps)
        return h, [e / total for e in exps]

    def train_batch(self, batch, rate, momentum):
        """One step down the gradient of the mean cross-entropy; returns the summed loss."""
        inputs, hidden, outputs = len(self.w1[0]), len(self.w1), len(self.w2)
        gradient = [0.0] * len(self.velocity)
        loss = 0.0
        second = hidden * (inputs + 1)
        for x, label in batch:
            h, p = self.forward(x)
            loss -= math.log(max(p[label], 1e-12))
            delta = [p[k] - (k == label) for k in range(outputs)]
            back = [sum(delta[k] * self.w2[k][j] for k in range(outputs)) * (1 - h[j] * h[j]) for j in range(hidden)]
            for j in range(hidden):
                at = j * (inputs + 1)
                for i in range(inputs):
                    gradient[at + i] += back[j] * x[i]
                gradient[at + inputs] += back[j]
            for k in range(outputs):
                at = second + k * (hidden + 1)
                for j in range(hidden):
                    gradient[at + j] += delta[k] * h[j]
                gradient[at + hidden] += delta[k]
        step = rate / len(batch)
        self.velocity = [momentum * v - step * g for v, g in zip(self.velocity, gradient)]
        self.move(inputs, hidden, outputs, second)
        return loss

    def move(self, inputs, hidden, outputs, second):
        for j in range(hidden):
            at = j * (inputs + 1)
            self.w1[j] = [w + v for w, v in zip(self.w1[j], self.velocity[at : at + inputs])]
            self.b1[j] += self.velocity[at + inputs]
        for k in range(outputs):
            at = second + k * (hidden + 1)
            self.w2[k] = [w + v for w, v in zip(self.w2[k], self.velocity[at : at + hidden])]
            self.b2[k] += self.velocity[at + hidden]

    def predict(self, x):
        _, p = self.forward(x)
        return max(range(len(p)), key=p.__getitem__)


def accuracy(network, rows):
    return sum(network.predict(x) == y for x, y in rows) / len(rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=Path(__file__).with_name("penguins.csv"))
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--hidden", type=int, default=8)
    parser.add_argument("--rate", type=float, default=0.1)
    parser.add_argument("--min-accuracy", type=float, default=0.95)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()

    rng = random.Random(args.seed)
    rows, species = load(args.data)
    rng.shuffle(rows)
    held_out = len(rows) // 4
    train, test = standardize(rows[held_out:], rows[:held_out])
    print(f"{len(rows)} penguins of {len(species)} species: {len(train)} to train on, {len(test)} held out", flush=True)

    network = Network(len(FEATURES), args.hidden, len(species), rng)
    started = time.perf_counter()
    for epoch in range(1, args.epochs + 1):
        rng.shuffle(train)
        loss = sum(network.train_batch(train[at : at + 16], args.rate, 0.9) for at in range(0, len(train), 16))
        print(
            f"epoch {epoch:3}/{args.epochs}  loss {loss / len(train):.4f}  train accuracy {accuracy(network, train):.1%}",
            flush=True,
        )
    took = time.perf_counter() - started

    reached = accuracy(network, test)
    for index, name in enumerate(species):
        of_species = [row for row in test if row[1] == index]
        right = sum(network.predict(x) == y for x, y in of_species)
        print(f"  {name:<10} {right}/{len(of_species)} recognised")
    print(f"test accuracy {reached:.1%} after {took:.1f} s of training")
    if reached < args.min_accuracy:
        sys.exit(f"too low: at least {args.min_accuracy:.0%} was asked")


if __name__ == "__main__":
    main()
