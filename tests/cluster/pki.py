"""Keys and certificates of one cluster, and the kubeconfig of each who talks to its API."""

import subprocess
from base64 import b64encode

from place import API, API_SERVICE_ADDRESS, NODE, NODE_ADDRESS

NODE_CERTIFICATE = [f"IP:{NODE_ADDRESS}", "IP:127.0.0.1", f"DNS:{NODE}"]
API_CERTIFICATE = [
    *NODE_CERTIFICATE,
    f"IP:{API_SERVICE_ADDRESS}",
    "DNS:localhost",
    "DNS:kubernetes",
    "DNS:kubernetes.default",
    "DNS:kubernetes.default.svc",
    "DNS:kubernetes.default.svc.cluster.local",
]

# Who presents a certificate, as the user and groups that the API reads from it.
CLIENTS = {
    "admin": ("sandbar-test-admin", ["system:masters"]),
    "apiserver-client": ("kube-apiserver", ["system:masters"]),
    "controller-manager": ("system:kube-controller-manager", []),
    "scheduler": ("system:kube-scheduler", []),
    "kubelet": (f"system:node:{NODE}", ["system:nodes"]),
    "proxy": ("system:kube-proxy", []),
    "enforcer": ("sandbar-test-enforcer", ["system:masters"]),
    "kwok": ("sandbar-test-kwok", ["system:masters"]),
}

# The account that agent-sandbox's own manifests give rights to, so that the controller has those and no more. Its name
# is longer than a certificate's may be: an administrator speaks as it.
CONTROLLER = """
    as: "system:serviceaccount:agent-sandbox-system:agent-sandbox-controller"
    as-groups: ["system:serviceaccounts", "system:serviceaccounts:agent-sandbox-system", "system:authenticated"]"""


def openssl(*arguments):
    subprocess.run(["openssl", *arguments], check=True, capture_output=True)


def make(place):
    pki = place.path("pki")
    pki.mkdir()
    pki.chmod(0o700)
    place.text("pki/ca.cnf", "[req]\ndistinguished_name=n\n[n]\n[x]\nbasicConstraints=critical,CA:TRUE\nkeyUsage=keyCertSign,cRLSign\n")
    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "30"]
    openssl("req", "-x509", *key, "-config", f"{pki}/ca.cnf", "-extensions", "x", "-subj", "/CN=sandbar-test", "-keyout", f"{pki}/ca.key", "-out", f"{pki}/ca.crt")
    openssl("genrsa", "-traditional", "-out", f"{pki}/accounts.key", "2048")
    openssl("rsa", "-in", f"{pki}/accounts.key", "-pubout", "-out", f"{pki}/accounts.pub")

    def sign(name, user, groups, usage, names=None):
        alternative = f"subjectAltName={','.join(names)}\n" if names else ""
        place.text(
            f"pki/{name}.cnf",
            f"[req]\ndistinguished_name=n\n[n]\n[x]\nbasicConstraints=CA:FALSE\nkeyUsage=digitalSignature\nextendedKeyUsage={usage}\n{alternative}",
        )
        subject = "".join(f"/O={group}" for group in groups) + f"/CN={user}"
        openssl(
            "req", "-x509", *key, "-CA", f"{pki}/ca.crt", "-CAkey", f"{pki}/ca.key", "-config", f"{pki}/{name}.cnf", "-extensions", "x",
            "-subj", subject, "-keyout", f"{pki}/{name}.key", "-out", f"{pki}/{name}.crt",
        )  # fmt: skip

    sign("apiserver", "kube-apiserver", [], "serverAuth", API_CERTIFICATE)
    sign("node", NODE, [], "serverAuth", NODE_CERTIFICATE)
    for name, (user, groups) in CLIENTS.items():
        sign(name, user, groups, "clientAuth")
        place.text(f"kubeconfigs/{name}", kubeconfig(place, name))
    place.text("kubeconfigs/controller", kubeconfig(place, "admin", CONTROLLER))
    place.text("kubeconfig", kubeconfig(place, "admin"))


def kubeconfig(place, name, more=""):
    # Certificates are included, so that the file works wherever it is copied to.
    def data(file):
        return b64encode(place.path("pki", file).read_bytes()).decode()

    return f"""apiVersion: v1
kind: Config
clusters:
- name: sandbar-test
  cluster: {{server: "{API}", certificate-authority-data: {data("ca.crt")}}}
users:
- name: {name}
  user:
    client-certificate-data: {data(f"{name}.crt")}
    client-key-data: {data(f"{name}.key")}{more}
contexts:
- name: sandbar-test
  context: {{cluster: sandbar-test, user: {name}}}
current-context: sandbar-test
"""
