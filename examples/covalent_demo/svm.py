"""Covalent: the SVM experiment from the AWS Batch plugin's documentation.

It requires the installed versions of NumPy and scikit-learn, because the versions in the
documentation have no wheels for Python 3.11 and later.
"""

from importlib.metadata import version

import covalent as ct
from numpy.random import permutation
from sklearn import datasets, svm

deps_pip = ct.DepsPip(
    packages=[f"numpy=={version('numpy')}", f"scikit-learn=={version('scikit-learn')}"]
)

executor = ct.executor.AWSBatchExecutor(
    s3_bucket_name="covalent-batch-qa-job-resources",
    batch_job_definition_name="covalent-batch-qa-job-definition",
    batch_queue="covalent-batch-qa-queue",
    batch_execution_role_name="ecsTaskExecutionRole",
    batch_job_role_name="covalent-batch-qa-job-role",
    batch_job_log_group_name="covalent-batch-qa-log-group",
    vcpu=2,  # Number of vCPUs to allocate
    memory=3.75,  # Memory in GB to allocate
    time_limit=300,  # Time limit of job in seconds
)


@ct.electron(executor=executor, deps_pip=deps_pip)
def train_svm(data, C, gamma):
    X, y = data
    clf = svm.SVC(C=C, gamma=gamma)
    clf.fit(X[90:], y[90:])
    return clf


@ct.electron
def load_data():
    iris = datasets.load_iris()
    perm = permutation(iris.target.size)
    iris.data = iris.data[perm]
    iris.target = iris.target[perm]
    return iris.data, iris.target


@ct.electron
def score_svm(data, clf):
    X_test, y_test = data
    return clf.score(X_test[:90], y_test[:90])


@ct.lattice
def run_experiment(C=1.0, gamma=0.7):
    data = load_data()
    clf = train_svm(data=data, C=C, gamma=gamma)
    return score_svm(data=data, clf=clf)


if __name__ == "__main__":
    dispatch_id = ct.dispatch(run_experiment)(C=1.0, gamma=0.7)
    print(ct.get_result(dispatch_id=dispatch_id, wait=True).result)
