"""joblib: a scikit-learn grid search whose fits run as Batch jobs.

All joblib calls inside the block run on Batch. The image needs the same versions of joblib and
scikit-learn as your environment.

    farcall local -- python examples/joblib_search.py
"""

import joblib
from sklearn.datasets import load_iris
from sklearn.model_selection import GridSearchCV
from sklearn.svm import SVC

import farcall.joblib  # noqa: F401 - registers the backend "farcall"

if __name__ == "__main__":
    features, kinds = load_iris(return_X_y=True)
    search = GridSearchCV(SVC(), {"C": [0.1, 1, 10], "gamma": [0.1, 1]}, cv=4)

    # Each fit is short, so one job runs six of them.
    with joblib.parallel_config(backend="farcall", vcpu=1, memory=2, chunksize=6):
        search.fit(features, kinds)

    print(f"best: {search.best_params_}, right in {search.best_score_:.0%} of the cases")
