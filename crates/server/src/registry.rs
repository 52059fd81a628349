//! Routes as their handlers describe them. The description makes the route; the OpenAPI document is made of the same
//! descriptions, by tests alone: the program carries the document that is checked in, and none of the code that makes one.

use axum::{
    Router,
    handler::Handler,
    routing::{MethodFilter, MethodRouter},
};
use utoipa::openapi::HttpMethod;

use crate::App;

/// A router whose documented routes are known.
#[derive(Default)]
pub(crate) struct Routes {
    router: Router<App>,
    #[cfg(test)]
    document: utoipa_axum::router::OpenApiRouter<App>,
}

/// What `routes!` makes of handlers that share a path.
pub(crate) struct Described {
    pub(crate) path: String,
    pub(crate) methods: MethodRouter<App>,
    #[cfg(test)]
    pub(crate) document: utoipa_axum::router::UtoipaMethodRouter<App>,
}

impl Routes {
    pub(crate) fn routes(mut self, described: Described) -> Self {
        self.router = self.router.route(&described.path, described.methods);
        #[cfg(test)]
        {
            self.document = self.document.routes(described.document);
        }
        self
    }

    /// One that the document does not mention.
    pub(crate) fn route(mut self, path: &str, methods: MethodRouter<App>) -> Self {
        self.router = self.router.route(path, methods);
        self
    }

    pub(crate) fn merge(mut self, other: Self) -> Self {
        self.router = self.router.merge(other.router);
        #[cfg(test)]
        {
            self.document = self.document.merge(other.document);
        }
        self
    }

    pub(crate) fn into_router(self) -> Router<App> {
        self.router
    }

    #[cfg(test)]
    pub(crate) fn into_document(self) -> utoipa::openapi::OpenApi {
        self.document.into_openapi()
    }
}

pub(crate) fn on<H, T>(methods: MethodRouter<App>, described: &[HttpMethod], handler: H) -> MethodRouter<App>
where
    H: Handler<T, App>,
    T: 'static,
{
    let filter = described.iter().map(filter).reduce(MethodFilter::or);
    match filter {
        Some(filter) => methods.on(filter, handler),
        None => methods,
    }
}

fn filter(method: &HttpMethod) -> MethodFilter {
    match method {
        HttpMethod::Get => MethodFilter::GET,
        HttpMethod::Put => MethodFilter::PUT,
        HttpMethod::Post => MethodFilter::POST,
        HttpMethod::Delete => MethodFilter::DELETE,
        HttpMethod::Head => MethodFilter::HEAD,
        HttpMethod::Options => MethodFilter::OPTIONS,
        HttpMethod::Patch => MethodFilter::PATCH,
        HttpMethod::Trace => MethodFilter::TRACE,
        #[expect(unreachable_patterns, reason = "more may come")]
        _ => unreachable!("no handler is described so"),
    }
}

/// Handlers that share a path, by the description that `#[utoipa::path]` gave each of them.
macro_rules! routes {
    ($first:ident $(, $more:ident)* $(,)?) => {
        ::pastey::paste! {{
            use utoipa::Path as _;
            let methods = $crate::registry::on(axum::routing::MethodRouter::new(), &[<__path_ $first>]::methods(), $first);
            $(let methods = $crate::registry::on(methods, &[<__path_ $more>]::methods(), $more);)*
            $crate::registry::Described {
                path: [<__path_ $first>]::path(),
                methods,
                #[cfg(test)]
                document: ::utoipa_axum::routes!($first $(, $more)*),
            }
        }}
    };
}
pub(crate) use routes;
