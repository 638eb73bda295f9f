"""What ``farcall covalent demo`` runs: scripts and configuration as a user has them."""

from __future__ import annotations

BUCKET = "covalent-batch-qa-job-resources"
DEFINITION = "covalent-batch-qa-job-definition"
QUEUE = "covalent-batch-qa-queue"
EXECUTION_ROLE = "ecsTaskExecutionRole"
JOB_ROLE = "covalent-batch-qa-job-role"
LOG_GROUP = "covalent-batch-qa-log-group"

#: The document's usage example. Its numpy==1.23.2 and scikit-learn==1.1.2 are replaced by what is
#: installed here: scikit-learn 1.1.2 has no wheel for Python 3.11 and later. It also leaves the
#: job nothing to install.
SVM = f"""\
from numpy.random import permutation
from sklearn import svm, datasets
import covalent as ct

deps_pip = ct.DepsPip(
    # What is installed here: scikit-learn 1.1.2 has no wheels for 3.11 and later.
    packages=["numpy==@NUMPY@", "scikit-learn==@SKLEARN@"]
)

executor = ct.executor.AWSBatchExecutor(
    s3_bucket_name = "{BUCKET}",
    batch_job_definition_name = "{DEFINITION}",
    batch_queue = "{QUEUE}",
    batch_execution_role_name = "{EXECUTION_ROLE}",
    batch_job_role_name = "{JOB_ROLE}",
    batch_job_log_group_name = "{LOG_GROUP}",
    vcpu = 2, # Number of vCPUs to allocate
    memory = 3.75, # Memory in GB to allocate
    time_limit = 300, # Time limit of job in seconds
)

# Use executor plugin to train our SVM model.
@ct.electron(
    executor=executor,
    deps_pip=deps_pip
)
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
    return clf.score(
        X_test[:90],
        y_test[:90]
    )

@ct.lattice
def run_experiment(C=1.0, gamma=0.7):
    data = load_data()
    clf = train_svm(
        data=data,
        C=C,
        gamma=gamma
    )
    score = score_svm(
        data=data,
        clf=clf
    )
    return score

# Dispatch the workflow
dispatch_id = ct.dispatch(run_experiment)(
    C=1.0,
    gamma=0.7
)

# Wait for our result and get result value
result = ct.get_result(dispatch_id=dispatch_id, wait=True).result
print(result)
"""

SECTION = f"""\
[executors.awsbatch]
s3_bucket_name = "{BUCKET}"
batch_job_definition_name = "{DEFINITION}"
batch_queue = "{QUEUE}"
batch_execution_role_name = "{EXECUTION_ROLE}"
batch_job_role_name = "{JOB_ROLE}"
batch_job_log_group_name = "{LOG_GROUP}"
retry_attempts = 1
"""

FAILING = """\
import covalent as ct

@ct.electron(executor="awsbatch")  # its options come from the section above
def share(flowers, vases):
    print(f"{flowers} flowers for {vases} vases")
    return flowers / vases

@ct.lattice
def decorate(vases):
    return share(150, vases)

dispatch_id = ct.dispatch(decorate)(0)
node = ct.get_result(dispatch_id, wait=True).get_node_result(0)
print("status:", node["status"])
print("stdout:", node["stdout"])
print("error:", node["error"])
"""
