//! Pools.

use super::BuildError;
use super::metadata::{check_annotations, check_labels};
use crate::name::Name;
use crate::resources::{SandboxWarmPool, UpdateStrategy, UpdateStrategyType};

/// Builds a [`SandboxWarmPool`].
///
/// ```
/// use agent_sandbox::PoolBuilder;
///
/// let pool = PoolBuilder::new("python", "python-template").replicas(4).build()?;
/// assert_eq!(pool.spec.replicas, Some(4));
/// # Ok::<(), agent_sandbox::BuildError>(())
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct PoolBuilder {
    pool: SandboxWarmPool,
    error: Option<BuildError>,
}

impl PoolBuilder {
    /// A pool of this name, of one sandbox of this template.
    pub fn new<N, T>(name: N, template: T) -> Self
    where
        N: TryInto<Name>,
        T: TryInto<Name>,
        BuildError: From<N::Error> + From<T::Error>,
    {
        let name = name.try_into().map(String::from).map_err(BuildError::from);
        let template = template.try_into().map(String::from).map_err(BuildError::from);
        let (name, template, error) = match (name, template) {
            (Ok(name), Ok(template)) => (name, template, None),
            (Err(error), _) | (_, Err(error)) => (String::new(), String::new(), Some(error)),
        };
        let mut pool = SandboxWarmPool::new(&name, Default::default());
        pool.spec.sandbox_template_ref.name = template;
        pool.spec.replicas = Some(1);
        Self { pool, error }
    }

    /// How many wait. None makes every claim a cold start.
    pub fn replicas(mut self, replicas: u32) -> Self {
        match i32::try_from(replicas) {
            Ok(replicas) => self.pool.spec.replicas = Some(replicas),
            Err(_) => {
                let error = BuildError::Range { field: "replicas", value: replicas.to_string() };
                self.error.get_or_insert(error);
            }
        }
        self
    }

    /// What becomes of members when the template changes.
    pub fn update_strategy(mut self, strategy: UpdateStrategyType) -> Self {
        self.pool.spec.update_strategy = Some(UpdateStrategy { kind: Some(strategy) });
        self
    }

    /// A label of the pool.
    pub fn label(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.pool.metadata.labels.get_or_insert_default().insert(key.into(), value.into());
        self
    }

    /// An annotation of the pool.
    pub fn annotation(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.pool.metadata.annotations.get_or_insert_default().insert(key.into(), value.into());
        self
    }

    /// The pool.
    pub fn build(self) -> Result<SandboxWarmPool, BuildError> {
        if let Some(error) = self.error {
            return Err(error);
        }
        check_labels(self.pool.metadata.labels.as_ref())?;
        check_annotations(self.pool.metadata.annotations.as_ref())?;
        Ok(self.pool)
    }
}
