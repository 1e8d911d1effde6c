"""Lloyd's algorithm from evenly spaced rows, in plain numpy."""

import numpy as np


def unit(rows):
    return rows / np.linalg.norm(rows, axis=-1, keepdims=True)


def k_means(rows, clusters, iterations, cosine):
    """Returns: the label of each row, and the means."""
    rows = rows.astype(np.float64)
    centroids = np.stack([rows[i * len(rows) // clusters] for i in range(clusters)])
    labels = np.full(len(rows), -1)
    for _ in range(iterations):
        if cosine:
            near = rows @ unit(centroids).T
        else:
            near = -((rows[:, None] - centroids[None]) ** 2).sum(axis=-1)
        assigned = near.argmax(axis=-1)
        if (assigned == labels).all():
            break
        labels = assigned
        for i in range(clusters):
            if (labels == i).any():
                centroids[i] = rows[labels == i].mean(axis=0)
    return labels, centroids
