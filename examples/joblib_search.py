"""joblib: a grid search of scikit-learn whose fits are Batch jobs.

Whatever runs by joblib runs on Batch inside the block. The image needs joblib and scikit-learn, in
the versions that you have here.

    farcall local -- python examples/joblib_search.py
"""

import joblib
from sklearn.datasets import load_iris
from sklearn.model_selection import GridSearchCV
from sklearn.svm import SVC

import farcall.joblib  # noqa: F401 - tells joblib the name "farcall"

if __name__ == "__main__":
    features, kinds = load_iris(return_X_y=True)
    search = GridSearchCV(SVC(), {"C": [0.1, 1, 10], "gamma": [0.1, 1]}, cv=4)

    # A fit is short: six of them are one job.
    with joblib.parallel_config(backend="farcall", vcpu=1, memory=2, chunksize=6):
        search.fit(features, kinds)

    print(f"best: {search.best_params_}, right in {search.best_score_:.0%} of the cases")
