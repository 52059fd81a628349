//! Which version of the API a cluster serves, and objects that are read and written in that one.

use std::borrow::Cow;
use std::fmt;

use kube::Resource;
use kube::core::{DynamicResourceScope, NamespaceResourceScope, ObjectMeta};
use serde::de::{DeserializeOwned, Error as _};
use serde::ser::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

use super::{Sandbox, SandboxClaim, SandboxTemplate, SandboxWarmPool, alpha};

/// A version of the API.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Version {
    /// What 1.0 and later serve.
    #[default]
    V1Beta1,
    /// What releases before 1.0 serve; converted when read and written.
    V1Alpha1,
}

impl Version {
    /// As it stands in `apiVersion`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::V1Beta1 => "v1beta1",
            Self::V1Alpha1 => "v1alpha1",
        }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

mod sealed {
    pub trait Sealed {}
}

/// One of the four kinds.
pub trait Kind:
    Resource<DynamicType = (), Scope = NamespaceResourceScope>
    + sealed::Sealed
    + Clone
    + fmt::Debug
    + Serialize
    + DeserializeOwned
    + Send
    + Sync
    + 'static
{
    /// As it stands in `kind`.
    const KIND: &'static str;

    #[doc(hidden)]
    fn from_alpha(object: &mut Value);

    #[doc(hidden)]
    fn to_alpha(object: &mut Value, template: Option<&str>) -> Result<(), &'static str>;
}

macro_rules! kind {
    ($kind:ident, $from:path, $to:path) => {
        impl sealed::Sealed for $kind {}
        impl Kind for $kind {
            const KIND: &'static str = stringify!($kind);

            fn from_alpha(object: &mut Value) {
                $from(object);
            }

            fn to_alpha(object: &mut Value, template: Option<&str>) -> Result<(), &'static str> {
                $to(object, template)
            }
        }
    };
}

kind!(Sandbox, alpha::sandbox_from, alpha::sandbox_to);
kind!(SandboxClaim, alpha::claim_from, alpha::claim_to);
kind!(SandboxTemplate, alpha::unchanged_from, alpha::template_to);
kind!(SandboxWarmPool, alpha::unchanged_from, alpha::pool_to);

/// An object as `v1beta1` has it, on the wire in the version that the cluster serves.
#[derive(Clone, Debug)]
pub(crate) struct Served<K> {
    pub(crate) object: K,
    pub(crate) version: Version,
    /// `v1alpha1` claims name their template, which `v1beta1` knows through the pool.
    pub(crate) template: Option<String>,
}

impl<K: Kind> Resource for Served<K> {
    type DynamicType = Version;
    type Scope = DynamicResourceScope;

    fn kind(_: &Version) -> Cow<'_, str> {
        K::kind(&())
    }

    fn group(_: &Version) -> Cow<'_, str> {
        K::group(&())
    }

    fn version(version: &Version) -> Cow<'_, str> {
        version.as_str().into()
    }

    fn plural(_: &Version) -> Cow<'_, str> {
        K::plural(&())
    }

    fn meta(&self) -> &ObjectMeta {
        self.object.meta()
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        self.object.meta_mut()
    }
}

impl<K: Kind> Serialize for Served<K> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.version == Version::V1Beta1 {
            return self.object.serialize(serializer);
        }
        let mut value = serde_json::to_value(&self.object).map_err(S::Error::custom)?;
        K::to_alpha(&mut value, self.template.as_deref()).map_err(S::Error::custom)?;
        value["apiVersion"] = Self::api_version(&self.version).into_owned().into();
        value.serialize(serializer)
    }
}

impl<'de, K: Kind> Deserialize<'de> for Served<K> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut value = Value::deserialize(deserializer)?;
        let alpha = value["apiVersion"].as_str().is_some_and(|version| version.ends_with("/v1alpha1"));
        let version = if alpha { Version::V1Alpha1 } else { Version::V1Beta1 };
        if alpha {
            K::from_alpha(&mut value);
            value["apiVersion"] = K::api_version(&()).into_owned().into();
        }
        let object = serde_json::from_value(value).map_err(D::Error::custom)?;
        Ok(Self { object, version, template: None })
    }
}
